// Prints records of a file: go run . FILE OFFSET LENGTH [OFFSET LENGTH]...
//
// cgo finds the library by pkg-config: PKG_CONFIG_PATH has the folder of nowait.pc, and
// LD_LIBRARY_PATH that of libnowait.so, unless they are where the system looks.
package main

// #cgo pkg-config: nowait
// #include <fcntl.h>
// #include <stdlib.h>
// #include <nowait.h>
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"unsafe"
)

// failure gives the last message: it is the thread's, so the caller keeps its thread.
func failure(result C.int) error {
	if result < 0 {
		return errors.New(C.GoString(C.nowait_error_message()))
	}
	return nil
}

func gather(path string, ranges []C.struct_nowait_range) ([]byte, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var file C.nowait_file
	if err := failure(C.nowait_file_open(0, name, C.O_RDONLY, 0, &file)); err != nil {
		return nil, err
	}
	defer C.nowait_file_close(file)
	total := 0
	for _, one := range ranges {
		total += int(one.length)
	}
	output := make([]byte, total+1)
	result := C.nowait_gather(file, &ranges[0], C.size_t(len(ranges)), unsafe.Pointer(&output[0]), C.size_t(total), nil)
	return output[:total], failure(result)
}

func main() {
	arguments := os.Args[1:]
	if len(arguments) < 3 || len(arguments)%2 != 1 {
		fmt.Fprintln(os.Stderr, "usage: records FILE OFFSET LENGTH [OFFSET LENGTH]...")
		os.Exit(2)
	}
	var ranges []C.struct_nowait_range
	for i := 1; i < len(arguments); i += 2 {
		offset, first := strconv.ParseUint(arguments[i], 10, 64)
		length, second := strconv.ParseUint(arguments[i+1], 10, 32)
		if err := errors.Join(first, second); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		ranges = append(ranges, C.struct_nowait_range{offset: C.uint64_t(offset), length: C.uint64_t(length)})
	}
	bytes, err := gather(arguments[0], ranges)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Stdout.Write(bytes)
}
