/* An I/O engine of fio over the C interface of nowait:
 *
 *     fio --ioengine=external:/usr/local/lib/libnowait-fio.so ...
 *
 * `build`, beside this file, compiles it against the headers of the fio that is installed. fio's
 * structs differ between versions: `is_same_layout` refuses a fio with another layout.
 *
 * With iodepth=1 an I/O is a blocking call. With more, each job has a queue: `queue` makes an I/O that
 * need not wait and stages any other, `commit` submits what is staged, `getevents` reaps. The job's thread or process makes its state, after
 * fio's fork, and uses none of its parent's.
 *
 * Memory: fio leaves an io_u, its buffer and its file alone from `queue` until `event` returns the
 * io_u. Before it frees buffers it waits for all that is in flight; `drain` does so where fio could
 * not. */

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fio.h"
#include "optgroup.h"

#include <nowait.h>

/* The handle of a file is kept where fio has a pointer for engines. */
_Static_assert(sizeof(nowait_file) == sizeof(void *), "a handle has 64 bits");

struct options {
    /* fio takes offset 0 for no offset. */
    void *pad;
    unsigned int engine;
};

/* State of a job. */
struct job {
    /* 0: that of the process. */
    nowait_instance instance;
    /* 0 with iodepth=1. The arrays below have `depth` elements: fio has no more I/Os. */
    nowait_queue queue;
    unsigned int depth;
    /* Queued, not submitted. */
    struct io_u **staged;
    unsigned int staged_count;
    /* Arguments of a submission. */
    struct nowait_read *reads;
    struct nowait_write *writes;
    /* Complete, not returned by `getevents`: `ready_count` from `ready_first` on, in a circle. */
    struct io_u **ready;
    unsigned int ready_first, ready_count;
    struct nowait_completion *completions;
    /* Returned by the last `getevents`. */
    struct io_u **events;
};

static struct fio_option engine_options[] = {
    {
        .name = "nowait_engine",
        .lname = "nowait engine",
        .type = FIO_OPT_STR,
        .off1 = offsetof(struct options, engine),
        .help = "Engine for operations that would block the caller",
        .def = "auto",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
        .posval =
            {
                {.ival = "auto", .oval = NOWAIT_ENGINE_AUTO, .help = "io_uring, else libaio or threads"},
                {.ival = "uring", .oval = NOWAIT_ENGINE_URING, .help = "io_uring, or an error"},
                {.ival = "aio", .oval = NOWAIT_ENGINE_AIO, .help = "libaio for direct I/O, else threads"},
                {.ival = "pool", .oval = NOWAIT_ENGINE_POOL, .help = "threads only"},
            },
    },
    {.name = NULL},
};

/* fio finds the engine by this name. */
extern struct ioengine_ops ioengine;

/* Whether fio's structs are those of the headers: `io_ops` lies behind the options of a job, and the
 * distance of two jobs is the size of the whole struct. */
static bool is_same_layout(struct thread_data *td) {
    unsigned int number = td->thread_number;
    if (td->io_ops == &ioengine && number >= 1 && number <= REAL_MAX_JOBS && td == tnumber_to_td(number - 1)) {
        return true;
    }
    log_err("nowait: fio is not the one that this engine was built for; build it again\n");
    return false;
}

static nowait_file file_of(const struct io_u *io_u) {
    return (nowait_file)(uintptr_t)FILE_ENG_DATA(io_u->file);
}

/* Writes the result of an I/O to where fio looks for it. `message` is copied. */
static void conclude(struct io_u *io_u, int64_t result, const char *message) {
    if (result < 0) {
        io_u->error = (unsigned int)-result;
        free(io_u->engine_data);
        io_u->engine_data = message == NULL ? NULL : strdup(message);
    } else if (ddir_rw(io_u->ddir)) {
        io_u->resid = io_u->xfer_buflen - (unsigned long long)result;
    }
}

/* Returns a text that fio frees; it may ask twice. */
static char *errdetails(struct io_u *io_u) {
    return strdup(io_u->engine_data == NULL ? "no details" : io_u->engine_data);
}

/* Makes an I/O, and waits for it if the job has no queue. Returns as the calls of nowait do: -EAGAIN if
 * the queue is to have it. */
static int64_t make(struct thread_data *td, struct io_u *io_u) {
    const struct job *job = td->io_ops_data;
    nowait_file file = file_of(io_u);
    bool waits = job->queue == 0;
    switch (io_u->ddir) {
    case DDIR_READ:
        return waits ? nowait_read_at(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset)
                     : nowait_try_read_at(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset);
    case DDIR_WRITE:
        return waits ? nowait_write_at(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset, 0)
                     : nowait_try_write_at(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset);
    case DDIR_SYNC:
        return waits ? nowait_sync(file, NOWAIT_SYNC_ALL) : -EAGAIN;
    case DDIR_DATASYNC:
        return waits ? nowait_sync(file, 0) : -EAGAIN;
    case DDIR_SYNC_FILE_RANGE:
        /* nowait has no such call, since it makes nothing durable. This is fio's. */
        return do_io_u_sync(td, io_u) < 0 ? -(int64_t)io_u->error : 0;
    default:
        return -EOPNOTSUPP;
    }
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u) {
    struct job *job = td->io_ops_data;
    fio_ro_check(td, io_u);
    /* A sync covers what was queued before it, so that has to be submitted first: fio calls `commit` and
     * comes again. */
    bool overtakes = !ddir_rw(io_u->ddir) && job->staged_count > 0;
    if (job->queue != 0 && (job->staged_count == job->depth || overtakes)) {
        return FIO_Q_BUSY;
    }
    if (fio_fill_issue_time(td)) {
        fio_gettime(&io_u->issue_time, NULL);
        td->last_issue = io_u->issue_time;
    }
    int64_t result = make(td, io_u);
    if (result == -EAGAIN && job->queue != 0) {
        job->staged[job->staged_count++] = io_u;
        return FIO_Q_QUEUED;
    }
    if (result < 0) {
        bool is_own = io_u->ddir == DDIR_SYNC_FILE_RANGE || io_u->ddir == DDIR_TRIM;
        conclude(io_u, result, is_own ? strerror((int)-result) : nowait_error_message());
        io_u_log_error(td, io_u);
    } else {
        conclude(io_u, result, NULL);
    }
    io_u_mark_submit(td, 1);
    io_u_mark_complete(td, 1);
    return FIO_Q_COMPLETED;
}

static void complete(struct job *job, struct io_u *io_u, int64_t result, const char *message) {
    conclude(io_u, result, message);
    job->ready[(job->ready_first + job->ready_count++) % job->depth] = io_u;
}

/* Submits what is staged. What is refused completes with the error. */
static int commit(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    size_t reads = 0, writes = 0;
    unsigned int count = job->staged_count;
    if (count == 0) {
        return 0;
    }
    for (unsigned int i = 0; i < count; i++) {
        struct io_u *io_u = job->staged[i];
        nowait_file file = file_of(io_u);
        if (io_u->ddir == DDIR_READ) {
            job->reads[reads++] =
                (struct nowait_read){file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset, io_u, 0};
        } else if (io_u->ddir == DDIR_WRITE) {
            job->writes[writes++] =
                (struct nowait_write){file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset, 0, io_u, 0};
        } else {
            uint32_t flags = io_u->ddir == DDIR_SYNC ? NOWAIT_SYNC_ALL : 0;
            int refused = nowait_submit_sync(job->queue, file, flags, io_u, NULL);
            if (refused < 0) {
                complete(job, io_u, refused, nowait_error_message());
            }
        }
    }
    int refused = reads == 0 ? 0 : nowait_submit_reads(job->queue, job->reads, reads);
    for (size_t i = 0; refused < 0 && i < reads; i++) {
        complete(job, job->reads[i].user, refused, nowait_error_message());
    }
    refused = writes == 0 ? 0 : nowait_submit_writes(job->queue, job->writes, writes);
    for (size_t i = 0; refused < 0 && i < writes; i++) {
        complete(job, job->writes[i].user, refused, nowait_error_message());
    }
    /* No io_u is fio's again before `getevents`, complete or not. */
    if (fio_fill_issue_time(td)) {
        struct timespec now;
        fio_gettime(&now, NULL);
        for (unsigned int i = 0; i < count; i++) {
            job->staged[i]->issue_time = now;
            io_u_queued(td, job->staged[i]);
        }
        td->last_issue = now;
    }
    io_u_mark_submit(td, count);
    job->staged_count = 0;
    return 0;
}

/* Reaps what there is, after a wait of up to `timeout_ms` for the first. */
static int reap(struct job *job, int timeout_ms) {
    int count;
    do {
        count = nowait_reap(job->queue, job->completions, job->depth, timeout_ms);
    } while (count == -EINTR);
    for (int i = 0; i < count; i++) {
        const struct nowait_completion *one = &job->completions[i];
        complete(job, one->user, one->result, one->message);
    }
    if (count < 0) {
        log_err("nowait: %s\n", nowait_error_message());
    }
    return count;
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *timeout) {
    struct job *job = td->io_ops_data;
    unsigned int count = 0;
    if (job->queue == 0) {
        return 0;
    }
    for (;;) {
        while (count < max && job->ready_count > 0) {
            job->events[count++] = job->ready[job->ready_first];
            job->ready_first = (job->ready_first + 1) % job->depth;
            job->ready_count--;
        }
        if (count == max || (count > 0 && count >= min)) {
            return (int)count;
        }
        int wait_ms = -1;
        if (count >= min) {
            wait_ms = 0;
        } else if (timeout != NULL) {
            int64_t ms = (int64_t)timeout->tv_sec * 1000 + (timeout->tv_nsec + 999999) / 1000000;
            wait_ms = ms > INT_MAX ? INT_MAX : (int)ms;
        }
        int reaped = reap(job, wait_ms);
        if (reaped <= 0) {
            /* Those that are out of the ring would be lost with an error. The next call reports it. */
            return reaped < 0 && count == 0 ? reaped : (int)count;
        }
    }
}

static struct io_u *event(struct thread_data *td, int event) {
    const struct job *job = td->io_ops_data;
    return job->events[event];
}

/* Waits for all that is in flight. */
static void drain(struct job *job) {
    while (job != NULL && job->queue != 0 && nowait_queue_operations(job->queue) > 0) {
        job->ready_count = 0;
        if (reap(job, -1) < 0) {
            return;
        }
    }
}

static int io_u_init(struct thread_data *td, struct io_u *io_u) {
    io_u->engine_data = NULL;
    return 0;
}

static void io_u_free(struct thread_data *td, struct io_u *io_u) {
    drain(td->io_ops_data);
    free(io_u->engine_data);
    io_u->engine_data = NULL;
}

static void cleanup(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    if (job == NULL) {
        return;
    }
    drain(job);
    if (job->queue != 0 && nowait_queue_close(job->queue) < 0) {
        log_err("nowait: %s\n", nowait_error_message());
    }
    if (job->instance != 0) {
        nowait_instance_close(job->instance);
    }
    free(job->staged);
    free(job->reads);
    free(job->writes);
    free(job->ready);
    free(job->completions);
    free(job->events);
    free(job);
    td->io_ops_data = NULL;
}

/* Opens what a job needs. Returns 0 or an errno. */
static int set_up(struct job *job, const struct options *chosen) {
    struct nowait_instance_options wanted = {.size = sizeof wanted, .engine = chosen->engine};
    int result = 0;
    if (chosen->engine != NOWAIT_ENGINE_AUTO) {
        result = nowait_instance_open(&wanted, &job->instance);
    }
    if (result == 0 && job->depth > 1) {
        job->staged = calloc(job->depth, sizeof *job->staged);
        job->reads = calloc(job->depth, sizeof *job->reads);
        job->writes = calloc(job->depth, sizeof *job->writes);
        job->ready = calloc(job->depth, sizeof *job->ready);
        job->completions = calloc(job->depth, sizeof *job->completions);
        job->events = calloc(job->depth, sizeof *job->events);
        if (!job->staged || !job->reads || !job->writes || !job->ready || !job->completions || !job->events) {
            log_err("nowait: no memory for iodepth=%u; lower it\n", job->depth);
            return ENOMEM;
        }
        result = nowait_queue_open(&job->queue);
    }
    if (result < 0) {
        log_err("nowait: %s\n", nowait_error_message());
    }
    return -result;
}

static int init(struct thread_data *td) {
    if (!is_same_layout(td)) {
        return EINVAL;
    }
    if (td_trim(td)) {
        log_err("nowait: the engine has no trim; use another rw=, or another ioengine\n");
        return EOPNOTSUPP;
    }
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return ENOMEM;
    }
    job->depth = td->o.iodepth;
    td->io_ops_data = job;
    int failed = set_up(job, td->eo);
    if (failed != 0) {
        cleanup(td);
    }
    return failed;
}

/* fio asks in its main process, for every file and before anything else. */
static int get_file_size(struct thread_data *td, struct fio_file *f) {
    return is_same_layout(td) ? generic_get_file_size(td, f) : 1;
}

/* fio opens with all its options, such as direct=1. nowait makes a file of the descriptor. */
static int open_file(struct thread_data *td, struct fio_file *f) {
    const struct job *job = td->io_ops_data;
    int failed = generic_open_file(td, f);
    /* Without a job, this is the main process, which looks at the size of a device. */
    if (failed != 0 || job == NULL) {
        return failed;
    }
    nowait_file file;
    int result = nowait_file_from_descriptor(job->instance, f->fd, f->file_name, &file);
    if (result < 0) {
        log_err("nowait: %s\n", nowait_error_message());
        td_verror(td, -result, "nowait_file_from_descriptor");
        int ignored = generic_close_file(td, f);
        (void)ignored;
        return 1;
    }
    FILE_SET_ENG_DATA(f, (void *)(uintptr_t)file);
    return 0;
}

static int close_file(struct thread_data *td, struct fio_file *f) {
    nowait_file file = (nowait_file)(uintptr_t)FILE_ENG_DATA(f);
    int result = 0;
    if (td->io_ops_data != NULL && file != 0) {
        FILE_SET_ENG_DATA(f, NULL);
        result = nowait_file_close(file);
        if (result < 0) {
            log_err("nowait: %s\n", nowait_error_message());
        }
    }
    int closed = generic_close_file(td, f);
    return closed != 0 ? closed : -result;
}

struct ioengine_ops ioengine = {
    .name = "nowait",
    .version = FIO_IOOPS_VERSION,
    /* Calls that block set the time of issue before they wait. As with fio's io_uring, a job has no
     * workers that submit for it (io_submit_mode=offload). */
    .flags = FIO_ASYNCIO_SETS_ISSUE_TIME | FIO_NO_OFFLOAD,
    .init = init,
    .queue = queue,
    .commit = commit,
    .getevents = getevents,
    .event = event,
    .errdetails = errdetails,
    .cleanup = cleanup,
    .open_file = open_file,
    .close_file = close_file,
    .get_file_size = get_file_size,
    .io_u_init = io_u_init,
    .io_u_free = io_u_free,
    .option_struct_size = sizeof(struct options),
    .options = engine_options,
};
