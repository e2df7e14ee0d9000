/* SQLite over examples/sqlite_vfs.c: transactions by processes that are killed, and by several
 * processes at a time, some of which use SQLite's own VFS. */

#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "test.h"

int sqlite_vfs_register(void);

static char database[4200];

static sqlite3 *open_database(const char *vfs) {
    sqlite3 *db = NULL;
    int result = sqlite3_open_v2(database, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, vfs);
    if (result != SQLITE_OK) {
        fprintf(stderr, "open by %s: %s\n", vfs, sqlite3_errmsg(db));
        exit(1);
    }
    return db;
}

static void execute(sqlite3 *db, const char *sql) {
    char *error = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &error) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", sql, error);
        exit(1);
    }
}

static long long number(sqlite3 *db, const char *sql) {
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK || sqlite3_step(statement) != SQLITE_ROW) {
        fprintf(stderr, "%s: %s\n", sql, sqlite3_errmsg(db));
        exit(1);
    }
    long long value = sqlite3_column_int64(statement, 0);
    CHECK(sqlite3_finalize(statement) == SQLITE_OK);
    return value;
}

static void check_integrity(sqlite3 *db) {
    EQUAL(number(db, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'"), 1);
}

static void close_database(sqlite3 *db) { EQUAL(sqlite3_close(db), SQLITE_OK); }

static void remove_database(void) {
    const char *suffixes[] = {"", "-journal", "-wal", "-shm"};
    for (int i = 0; i < 4; i++) {
        char path[4300];
        snprintf(path, sizeof path, "%s%s", database, suffixes[i]);
        CHECK(unlink(path) == 0 || errno == ENOENT);
    }
}

static uint64_t random_state;

static uint64_t random_below(uint64_t bound) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % bound;
}

/* Transactions without end. Each has rows of odd sizes, removes old ones, and counts in `done`; its number
 * goes to `acknowledged` when COMMIT has returned. */
static void commit_for_ever(const char *mode, const char *locking, const char *synchronous, int acknowledged) {
    sqlite3 *db = open_database("nowait");
    char sql[400];
    snprintf(sql, sizeof sql, "PRAGMA locking_mode=%s; PRAGMA journal_mode=%s; PRAGMA synchronous=%s; "
             "PRAGMA cache_size=10; PRAGMA wal_autocheckpoint=20", locking, mode, synchronous);
    execute(db, sql);
    for (long long next = number(db, "SELECT n + 1 FROM done");; next++) {
        snprintf(sql, sizeof sql,
                 "BEGIN; INSERT INTO rows SELECT %lld, value, randomblob(1 + value * 97 %% 1500) FROM "
                 "generate WHERE value < 20; DELETE FROM rows WHERE txn = %lld - 50; UPDATE done SET n = %lld; COMMIT",
                 next, next, next);
        execute(db, sql);
        CHECK(write(acknowledged, &next, sizeof next) == sizeof next);
    }
}

/* Kills a process that commits, at any moment, and looks at what is left. What a process has written
 * outlives it without a sync; so most rounds go without, for the sake of many transactions. */
static void kills(void) {
    enum { ROUNDS = 40, EACH_MAX = 200, SYNCED_MAX = 10 };
    const char *modes[] = {"DELETE", "TRUNCATE", "PERSIST", "WAL"};
    remove_database();
    sqlite3 *db = open_database("nowait");
    execute(db, "PRAGMA synchronous=OFF; CREATE TABLE rows(txn INTEGER, part INTEGER, bytes BLOB, PRIMARY KEY (txn, part)); "
                "CREATE INDEX by_bytes ON rows(bytes); CREATE TABLE done(n INTEGER); INSERT INTO done VALUES (0); "
                "CREATE TABLE generate(value INTEGER PRIMARY KEY); "
                "WITH RECURSIVE n(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM n WHERE x < 19) "
                "INSERT INTO generate SELECT x FROM n");
    close_database(db);
    long long transactions = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const char *mode = modes[round % 4], *locking = round % 8 < 4 ? "EXCLUSIVE" : "NORMAL";
        int is_synced = round / 4 % 5 == 0;
        int ends[2];
        CHECK(pipe(ends) == 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            CHECK(close(ends[0]) == 0);
            commit_for_ever(mode, locking, is_synced ? "FULL" : "OFF", ends[1]);
        }
        CHECK(close(ends[1]) == 0);
        long long acknowledged = -1, one = 0;
        for (uint64_t left = 1 + random_below(is_synced ? SYNCED_MAX : EACH_MAX); left > 0; left--) {
            CHECK(read(ends[0], &one, sizeof one) == sizeof one);
            acknowledged = one;
        }
        /* Somewhere within the next. */
        for (uint64_t spin = random_below(3000000); spin > 0; spin--) {
            __asm__ volatile("");
        }
        CHECK(kill(child, SIGKILL) == 0);
        while (read(ends[0], &one, sizeof one) == sizeof one) {
            acknowledged = one;
        }
        CHECK(close(ends[0]) == 0);
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

        /* Recovered by this VFS, or by SQLite's own. */
        db = open_database(round % 3 == 0 ? "unix" : "nowait");
        execute(db, round % 5 == 0 ? "PRAGMA locking_mode=EXCLUSIVE" : "PRAGMA locking_mode=NORMAL");
        execute(db, "PRAGMA synchronous=OFF");
        check_integrity(db);
        long long done = number(db, "SELECT n FROM done");
        if (done < acknowledged || done > acknowledged + 1) {
            fprintf(stderr, "round %d, %s: %lld were acknowledged, %lld are there\n", round, mode, acknowledged, done);
            exit(1);
        }
        EQUAL(number(db, "SELECT max(txn) FROM rows"), done);
        EQUAL(number(db, "SELECT count(*) FROM rows"), 20 * (done < 50 ? done : 50));
        EQUAL(number(db, "SELECT count(*) FROM rows WHERE length(bytes) <> 1 + part * 97 % 1500"), 0);
        close_database(db);
        transactions = done;
    }
    printf("%lld transactions, %d kills\n", transactions, ROUNDS);
}

/* A process that is killed when half of a transaction is in the database file: it is rolled back. */
static void hot_journal(void) {
    remove_database();
    sqlite3 *db = open_database("nowait");
    execute(db, "PRAGMA synchronous=OFF; PRAGMA journal_mode=DELETE; CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB); "
                "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 500) "
                "INSERT INTO t SELECT x, zeroblob(1000) FROM n");
    close_database(db);
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    char byte = 0;
    if (child == 0) {
        sqlite3 *own = open_database("nowait");
        /* So few pages that most are written before the commit. */
        execute(own, "PRAGMA cache_size=10; BEGIN; UPDATE t SET b = randomblob(1000)");
        CHECK(write(ends[1], &byte, 1) == 1);
        for (;;) {
            pause();
        }
    }
    CHECK(read(ends[0], &byte, 1) == 1);
    /* It holds the locks meanwhile. */
    db = open_database("nowait");
    EQUAL(sqlite3_exec(db, "SELECT count(*) FROM t", NULL, NULL, NULL), SQLITE_BUSY);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, NULL, 0) == child);
    char journal[4300];
    snprintf(journal, sizeof journal, "%s-journal", database);
    CHECK(access(journal, F_OK) == 0);
    EQUAL(number(db, "SELECT count(*) FROM t WHERE b = zeroblob(1000)"), 500);
    check_integrity(db);
    CHECK(access(journal, F_OK) != 0);
    close_database(db);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* Two connections of one process. */
static void connections(void) {
    remove_database();
    sqlite3 *one = open_database("nowait"), *two = open_database("nowait"), *other = open_database("unix");
    execute(one, "CREATE TABLE t(a INTEGER); INSERT INTO t VALUES (1)");
    execute(one, "BEGIN IMMEDIATE; UPDATE t SET a = 2");
    EQUAL(sqlite3_exec(two, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_BUSY);
    EQUAL(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_BUSY);
    /* Readers come in until it commits, */
    EQUAL(number(two, "SELECT a FROM t"), 1);
    EQUAL(number(other, "SELECT a FROM t"), 1);
    execute(two, "BEGIN; SELECT a FROM t");
    /* which waits for those that are there, and lets no new one in. */
    EQUAL(sqlite3_exec(one, "COMMIT", NULL, NULL, NULL), SQLITE_BUSY);
    EQUAL(sqlite3_exec(other, "SELECT a FROM t", NULL, NULL, NULL), SQLITE_BUSY);
    execute(two, "COMMIT");
    execute(one, "COMMIT");
    EQUAL(number(two, "SELECT a FROM t"), 2);
    EQUAL(number(other, "SELECT a FROM t"), 2);
    /* Temporary files, and the whole file anew. */
    execute(two, "PRAGMA synchronous=OFF; PRAGMA temp_store=FILE; CREATE TEMP TABLE many AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL "
                 "SELECT x + 1 FROM n WHERE x < 20000) SELECT x, hex(x * 7919) AS h FROM n; "
                 "INSERT INTO t SELECT x FROM many ORDER BY h; DELETE FROM t WHERE a % 2; VACUUM");
    EQUAL(number(one, "SELECT count(*) FROM t"), 10001);
    check_integrity(one);
    close_database(one);
    close_database(two);
    close_database(other);
}

/* What a transaction writes beside the database is for those alone who may open that. */
static void modes(void) {
    const char *journal_modes[] = {"DELETE", "WAL"}, *suffixes[] = {"-journal", "-wal"};
    mode_t mask = umask(0);
    for (int i = 0; i < 2; i++) {
        remove_database();
        sqlite3 *db = open_database("nowait");
        execute(db, "CREATE TABLE t(a BLOB)");
        close_database(db);
        CHECK(chmod(database, 0600) == 0);
        db = open_database("nowait");
        char text[4300];
        snprintf(text, sizeof text, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=%s; BEGIN; "
                 "INSERT INTO t VALUES (randomblob(100000)); PRAGMA cache_spill=1", journal_modes[i]);
        execute(db, text);
        snprintf(text, sizeof text, "%s%s", database, suffixes[i]);
        struct stat known;
        CHECK(stat(text, &known) == 0);
        EQUAL(known.st_mode & 0777, 0600);
        execute(db, "COMMIT");
        close_database(db);
    }
    umask(mask);
}

/* Who may write the database may write what it is shared by, whatever the umask of those who opened it. */
static void modes_of_wal(void) {
    const char *suffixes[] = {"-wal", "-shm"};
    mode_t mask = umask(077);
    remove_database();
    sqlite3 *db = open_database("nowait");
    execute(db, "CREATE TABLE t(a)");
    CHECK(chmod(database, 0666) == 0);
    execute(db, "PRAGMA journal_mode=WAL; INSERT INTO t VALUES (1)");
    for (int i = 0; i < 2; i++) {
        char path[4300];
        struct stat known;
        snprintf(path, sizeof path, "%s%s", database, suffixes[i]);
        CHECK(stat(path, &known) == 0);
        EQUAL(known.st_mode & 0777, 0666);
    }
    close_database(db);
    umask(mask);
}

static int try_again(void *unused, int times) {
    (void)unused;
    (void)times;
    usleep(500);
    return 1;
}

/* Readers of a database in WAL mode, each with what was there when it began. */
static void snapshots(void) {
    remove_database();
    sqlite3 *writer = open_database("nowait"), *reader = open_database("nowait");
    execute(writer, "PRAGMA journal_mode=WAL; CREATE TABLE t(a BLOB); INSERT INTO t VALUES (1)");
    execute(reader, "BEGIN");
    EQUAL(number(reader, "SELECT count(*) FROM t"), 1);
    /* So many pages that the index takes several regions of shared memory. */
    execute(writer, "PRAGMA wal_autocheckpoint=0; WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n "
                    "WHERE x < 10000) INSERT INTO t SELECT randomblob(4000) FROM n");
    EQUAL(number(writer, "SELECT count(*) FROM t"), 10001);
    EQUAL(number(reader, "SELECT count(*) FROM t"), 1);
    EQUAL(sqlite3_exec(reader, "INSERT INTO t VALUES (2)", NULL, NULL, NULL), SQLITE_BUSY);
    execute(reader, "COMMIT");
    EQUAL(number(reader, "SELECT count(*) FROM t"), 10001);
    execute(writer, "BEGIN IMMEDIATE");
    EQUAL(sqlite3_exec(reader, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_BUSY);
    execute(writer, "COMMIT");
    char shared[4300];
    snprintf(shared, sizeof shared, "%s-shm", database);
    CHECK(access(shared, F_OK) == 0);
    close_database(writer);
    CHECK(access(shared, F_OK) == 0);
    check_integrity(reader);
    close_database(reader);
    CHECK(access(shared, F_OK) != 0);
}

/* What programs ask of an open file. */
static void controls(void) {
    remove_database();
    sqlite3 *db = open_database("nowait");
    execute(db, "CREATE TABLE t(a BLOB)");
    char *text = NULL;
    CHECK(sqlite3_file_control(db, "main", SQLITE_FCNTL_VFSNAME, &text) == SQLITE_OK);
    CHECK(strcmp(text, "nowait") == 0);
    sqlite3_free(text);
    CHECK(setenv("SQLITE_TMPDIR", "/proc/self/no such folder", 1) == 0 && setenv("TMPDIR", "/dev", 1) == 0);
    CHECK(sqlite3_file_control(db, "main", SQLITE_FCNTL_TEMPFILENAME, &text) == SQLITE_OK);
    CHECK(strncmp(text, geteuid() == 0 ? "/dev/" : "/var/tmp/", 5) == 0);
    sqlite3_free(text);
    CHECK(unsetenv("SQLITE_TMPDIR") == 0 && unsetenv("TMPDIR") == 0);
    int chunk = 1 << 20;
    struct stat known;
    CHECK(sqlite3_file_control(db, "main", SQLITE_FCNTL_CHUNK_SIZE, &chunk) == SQLITE_OK);
    execute(db, "INSERT INTO t VALUES (randomblob(10000))");
    CHECK(stat(database, &known) == 0);
    EQUAL(known.st_size, chunk);
    int moved = 1;
    char other[4300];
    snprintf(other, sizeof other, "%s-moved", database);
    CHECK(sqlite3_file_control(db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK);
    EQUAL(moved, 0);
    CHECK(rename(database, other) == 0);
    CHECK(sqlite3_file_control(db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK);
    EQUAL(moved, 1);
    EQUAL(sqlite3_exec(db, "INSERT INTO t VALUES (1)", NULL, NULL, NULL), SQLITE_READONLY);
    CHECK(unlink(other) == 0);
    close_database(db);
}

/* Processes that count in one row, by either VFS: none is lost. */
static void processes(const char *journal_mode) {
    enum { PROCESSES = 4, EACH = 50 };
    remove_database();
    sqlite3 *db = open_database("nowait");
    char sql[200];
    snprintf(sql, sizeof sql, "PRAGMA journal_mode=%s; CREATE TABLE t(a INTEGER); INSERT INTO t VALUES (0)",
             journal_mode);
    execute(db, sql);
    close_database(db);
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            sqlite3 *own = open_database(i == 0 ? "unix" : "nowait");
            CHECK(sqlite3_busy_handler(own, try_again, NULL) == SQLITE_OK);
            execute(own, "PRAGMA synchronous=OFF");
            for (int k = 0; k < EACH; k++) {
                execute(own, "BEGIN IMMEDIATE; UPDATE t SET a = a + 1; COMMIT");
            }
            close_database(own);
            _exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = 0;
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        EQUAL(status, 0);
    }
    db = open_database("nowait");
    EQUAL(number(db, "SELECT a FROM t"), PROCESSES * EACH);
    check_integrity(db);
    close_database(db);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(sqlite_vfs_register() == SQLITE_OK);
    const char *seed = getenv("NOWAIT_TEST_SEED");
    random_state = seed != NULL ? strtoull(seed, NULL, 0) : (uint64_t)getpid() * 2654435761u;
    printf("NOWAIT_TEST_SEED=%llu\n", (unsigned long long)random_state);
    fflush(stdout);
    random_state += random_state == 0;
    snprintf(database, sizeof database, "%s/database", argv[1]);
    connections();
    modes();
    modes_of_wal();
    hot_journal();
    processes("TRUNCATE");
    processes("WAL");
    snapshots();
    controls();
    kills();
    return 0;
}
