// Prints a record of a file, by the foreign function interface of Java 22 or later:
// java --enable-native-access=ALL-UNNAMED Records.java LIBRARY FILE OFFSET LENGTH

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.Path;

public class Records {
    private static final Linker LINKER = Linker.nativeLinker();
    private static final int O_RDONLY = 0;

    private final MethodHandle open;
    private final MethodHandle read;
    private final MethodHandle close;
    private final MethodHandle message;

    private Records(SymbolLookup library) {
        open = function(library, "nowait_file_open", JAVA_INT, JAVA_LONG, ADDRESS, JAVA_INT, JAVA_INT, ADDRESS);
        read = function(library, "nowait_read_at", JAVA_LONG, JAVA_LONG, ADDRESS, JAVA_LONG, JAVA_LONG);
        close = function(library, "nowait_file_close", JAVA_INT, JAVA_LONG);
        message = function(library, "nowait_error_message", ADDRESS);
    }

    private static MethodHandle function(SymbolLookup library, String name, MemoryLayout result, MemoryLayout... arguments) {
        return LINKER.downcallHandle(library.find(name).orElseThrow(), FunctionDescriptor.of(result, arguments));
    }

    private void check(long result) throws Throwable {
        if (result < 0) {
            MemorySegment text = (MemorySegment) message.invokeExact();
            throw new java.io.IOException(text.reinterpret(Long.MAX_VALUE).getString(0));
        }
    }

    private byte[] record(String path, long offset, long length) throws Throwable {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment handle = arena.allocate(JAVA_LONG);
            check((int) open.invokeExact(0L, arena.allocateFrom(path), O_RDONLY, 0, handle));
            long file = handle.get(JAVA_LONG, 0);
            MemorySegment buffer = arena.allocate(Math.max(length, 1));
            long bytes = (long) read.invokeExact(file, buffer, length, offset);
            check(bytes);
            check((int) close.invokeExact(file));
            return buffer.asSlice(0, bytes).toArray(ValueLayout.JAVA_BYTE);
        }
    }

    public static void main(String[] arguments) throws Throwable {
        SymbolLookup library = SymbolLookup.libraryLookup(Path.of(arguments[0]), Arena.global());
        byte[] bytes = new Records(library).record(arguments[1], Long.parseLong(arguments[2]), Long.parseLong(arguments[3]));
        System.out.write(bytes);
        System.out.flush();
    }
}
