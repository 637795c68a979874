/* Lanes outside the interpreter: one thread per lane walks an array of steps and calls the runtimes' C functions.
 *
 * A run is a few counters. Each lane counts what it has finished; whoever needs that looks at the counter for a moment,
 * yields while that is cheap, and then sleeps on a futex; who is woken helps to wake the others. Between runs the
 * lanes' threads rest here too, so that a run begins on all of them without the interpreter. Nothing here allocates
 * during a run, takes a lock, or knows Python: a step that only Python can make is a function pointer like any other.
 *
 * Memory order. Counters are stored and looked at sequentially consistently where somebody may sleep: a sleeper says so
 * before it looks a last time, a publisher stores before it looks for sleepers. Plain looks are acquire loads.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define LINE 64

enum {
    LOOKS = 16,             /* looks with the CPU's pause between two readings of the clock */
    AWAKE_NS = 2000000,     /* how long a wait stays awake before it sleeps */
    DEAR_NS = 1000000,      /* a yield that took longer has given the core away to somebody else */
    SHY = 16, SHYEST = 4096,/* waits that go straight to sleep after such a yield: doubled each time, up to this */
    GLANCE_NS = 200000000,  /* how long the caller sleeps at most: a signal just before it fell asleep wakes nobody */
    BRIEF_NS = 500000,      /* runs that end sooner are not worth moving a thread for that stands where it should */
    CALLS = 2               /* whom each wakes; a call takes a few microseconds of who makes it */
};
#define FINISHED UINT32_MAX

enum operation { STAMP, BIND, WAIT, LENT, CALL, CALL_POINTER, CALL_ONCE, CALL_AGAIN, DONE };

struct step {
    int32_t operation;
    int32_t index;          /* by which a failure is told: the bound call that this is part of */
    int64_t a, b;           /* BIND: mask, its bytes. WAIT, LENT: lane, count. CALL_AGAIN: not yet. DONE: count */
    void *function;         /* CALL, CALL_AGAIN: returns int, 0 is well. CALL_POINTER: returns a pointer, NULL is well */
    void *arguments[5];
};

struct lane {
    _Alignas(LINE) atomic_uint done;
    _Alignas(LINE) const struct step *steps;
    int64_t steps_count;
    int64_t *stamps;
    const cpu_set_t *seat;  /* where its own thread is bound first; NULL: it stays where it is */
    int32_t seat_index;     /* by which it is told that this failed */
    int32_t failed, order;  /* the failed step's index, -1 for none; its place among the failures of all lanes */
    int64_t status;
};

struct waiter {
    _Alignas(LINE) atomic_uint asleep;
    atomic_int target;
    atomic_uint wanted;
    uint32_t shyness, skip;
};

/* Where a thread rests between runs: what it is called for, which is a lane at most and any number of jobs in Python. */
struct rest {
    _Alignas(LINE) atomic_uint word;
    struct run *run;
    int lane;
    struct rest *next[CALLS];   /* whom it calls in turn */
};
enum { LANE = 1, JOB = 2 };

struct run {
    int32_t lanes, first;
    int32_t brief;          /* whether the run before took less than BRIEF_NS */
    _Alignas(LINE) atomic_int stop;
    atomic_int failures, sleepers;
    struct lane *lane;
    struct waiter *waiter;  /* one per lane, and the caller's */
};

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

static inline int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static long futex(atomic_uint *word, int operation, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, timeout, NULL, 0);
}

static int rouse(struct waiter *waiter) {
    int slept = atomic_exchange(&waiter->asleep, 0);
    if (slept) futex(&waiter->asleep, FUTEX_WAKE, 1, NULL);
    return slept;
}

/* Wakes some of those whose wish is fulfilled; whom it wakes does the same before anything else. */
static void spread(struct run *run, int lane, uint32_t count) {
    for (int i = 0, calls = 0; i <= run->lanes && calls < CALLS; i++) {
        struct waiter *waiter = &run->waiter[i];
        if (atomic_load(&waiter->asleep) && atomic_load(&waiter->target) == lane && atomic_load(&waiter->wanted) <= count)
            calls += rouse(waiter);
    }
}

/* Counts, and has those woken whose wish it fulfils, if anybody sleeps. */
static void publish(struct run *run, int lane, uint32_t count) {
    atomic_store(&run->lane[lane].done, count);
    if (atomic_load(&run->sleepers)) spread(run, lane, count);
}

/* Stops every lane at the next step. Async-signal-safe. */
EXPORT void hope_stop(struct run *run) {
    int saved = errno;
    atomic_store(&run->stop, 1);
    for (int i = 0; i < run->lanes; i++) rouse(&run->waiter[i]);
    errno = saved;
}

enum { IN_TIME = 1, TOO_LATE = 0, NOT_YET = -1, STOPPED = -2 };

/* Waits until a lane has finished so much. A lane gives up when the run is stopped; the caller (waiter number `lanes`)
 * does not, but when it is later than `until`, or has slept: a signal may want to be handled. Where the core is `lent`
 * to the other lane's work until then, a dear yield says nothing about the waits to come. */
static int await(struct run *run, int me, int lane, uint32_t count, int lent, int64_t until) {
    atomic_uint *done = &run->lane[lane].done;
    struct waiter *waiter = &run->waiter[me];
    int caller = me == run->lanes, result = IN_TIME, awake = 1;
    if (atomic_load_explicit(done, memory_order_acquire) >= count) return IN_TIME;
    int64_t began = now();
    if (!lent && waiter->skip) waiter->skip--, awake = 0;
    do {
        for (int i = 0; i < LOOKS; i++) {
            pause_cpu();
            if (atomic_load_explicit(done, memory_order_acquire) >= count) {
                if (awake && !lent) waiter->shyness /= 2;
                return IN_TIME;
            }
        }
        if (!caller && atomic_load_explicit(&run->stop, memory_order_acquire)) return STOPPED;
        int64_t before = now();
        if (!awake || before - began > AWAKE_NS || before >= until) break;
        sched_yield();
        if (now() - before > DEAR_NS) {
            awake = 0;
            if (lent) continue;
            waiter->shyness = waiter->shyness < SHY ? SHY : 2 * waiter->shyness > SHYEST ? SHYEST : 2 * waiter->shyness;
            waiter->skip = waiter->shyness;
        }
    } while (1);
    atomic_store(&waiter->target, lane);
    atomic_store(&waiter->wanted, count);
    atomic_fetch_add(&run->sleepers, 1);
    for (int slept = 0;; slept = 1) {
        atomic_store(&waiter->asleep, 1);
        if (atomic_load(done) >= count) break;
        if (!caller) {
            if (atomic_load(&run->stop)) { result = STOPPED; break; }
            futex(&waiter->asleep, FUTEX_WAIT, 1, NULL);
            continue;
        }
        int64_t left = until - now();
        if (left <= 0 || slept) { result = left <= 0 ? TOO_LATE : NOT_YET; break; }
        struct timespec limit = {.tv_nsec = left < GLANCE_NS ? left : GLANCE_NS};
        futex(&waiter->asleep, FUTEX_WAIT, 1, &limit);
    }
    atomic_store(&waiter->asleep, 0);
    atomic_fetch_sub(&run->sleepers, 1);
    /* Whatever ended the wait: who was called to spread the word must not keep it. */
    if (atomic_load(&run->sleepers)) spread(run, lane, atomic_load(done));
    return result;
}

/* Ctrl-C while the main thread is in a lane: Python would hear of it only at the lane's end. */
static struct sigaction before_us;
static struct run *_Atomic watched;

static void heard(int number, siginfo_t *info, void *context) {
    struct run *run = atomic_load(&watched);
    if (run) hope_stop(run);
    if (before_us.sa_flags & SA_SIGINFO) before_us.sa_sigaction(number, info, context);
    else before_us.sa_handler(number);
}

static struct run *watch(struct run *run) {
    struct run *earlier = atomic_exchange(&watched, run);
    if (!earlier) {
        struct sigaction ours = {.sa_sigaction = heard, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigemptyset(&ours.sa_mask);
        sigaction(SIGINT, NULL, &before_us);
        if ((before_us.sa_flags & SA_SIGINFO) || (before_us.sa_handler != SIG_DFL && before_us.sa_handler != SIG_IGN))
            sigaction(SIGINT, &ours, NULL);
    }
    return earlier;
}

static void unwatch(struct run *earlier) {
    if (!earlier) sigaction(SIGINT, &before_us, NULL);
    atomic_store(&watched, earlier);
}

static void fail(struct run *run, struct lane *lane, int32_t index, int64_t status) {
    lane->order = atomic_fetch_add(&run->failures, 1);
    lane->failed = index;
    lane->status = status;
    hope_stop(run);
}

/* Walks one lane of a run to its end, in the calling thread. `interruptible`: the main thread's, which Ctrl-C stops. */
EXPORT void hope_drive(struct run *run, int me, int interruptible) {
    struct lane *lane = &run->lane[me];
    struct run *earlier = interruptible ? watch(run) : NULL;
    int64_t *stamps = lane->stamps;
    for (const struct step *step = lane->steps, *end = step + lane->steps_count; step < end; step++) {
        int64_t status = 0;
        void *const *x = step->arguments;
        switch (step->operation) {
        case STAMP:
            *stamps++ = now();
            break;
        case DONE:
            publish(run, me, (uint32_t)step->a);
            break;
        case WAIT:
            await(run, me, (int)step->a, (uint32_t)step->b, 0, INT64_MAX);
            break;
        case LENT:
            await(run, me, (int)step->a, (uint32_t)step->b, 1, INT64_MAX);
            break;
        case BIND:
            if (sched_setaffinity(0, (size_t)step->b, (const cpu_set_t *)step->a)) status = errno;
            break;
        case CALL_ONCE:
            if (!run->first) break;
            /* fall through */
        case CALL:
            status = ((int (*)(void *, void *, void *, void *, void *))step->function)(x[0], x[1], x[2], x[3], x[4]);
            break;
        case CALL_AGAIN:    /* also where the run has been stopped: what a device is at work on must not be let go of */
            while ((status = ((int (*)(void *, void *, void *, void *, void *))step->function)(x[0], x[1], x[2], x[3], x[4])) == step->a)
                sched_yield();  /* others may wait on this core too */
            break;
        case CALL_POINTER:
            status = (int64_t)((void *(*)(void *, void *, void *, void *, void *))step->function)(x[0], x[1], x[2], x[3], x[4]);
            break;
        }
        if (status) fail(run, lane, step->index, status);
        if (atomic_load_explicit(&run->stop, memory_order_relaxed)) break;
    }
    if (interruptible) unwatch(earlier);
}

/* Says that a lane runs no more. NOTE: it looks for sleepers after that: whose thread this is keeps the run's memory. */
EXPORT void hope_finish(struct run *run, int lane) { publish(run, lane, FINISHED); }

/* For the caller: until some lanes run no more, or the clock shows `until`. Below 0: look for signals and ask again. */
EXPORT int hope_await(struct run *run, int count, const int32_t *lanes, int64_t until) {
    int found = IN_TIME;
    for (int i = 0; i < count && found == IN_TIME; i++) found = await(run, run->lanes, lanes[i], FINISHED, 0, until);
    return found;
}

static void call(struct rest *rest, unsigned what) {
    atomic_fetch_add(&rest->word, what);
    futex(&rest->word, FUTEX_WAKE, 1, NULL);
}

/* Has lanes driven by the threads that rest there, none of which is called for a lane yet: some are called here, and
 * call others before anything else. */
EXPORT void hope_hand_out(struct run *run, int count, struct rest *const *rests, const int32_t *lanes) {
    for (int i = 0, next = CALLS; i < count; i++) {
        rests[i]->run = run;
        rests[i]->lane = lanes[i];
        for (int j = 0; j < CALLS; j++, next++) rests[i]->next[j] = next < count ? rests[next] : NULL;
    }
    for (int i = 0; i < CALLS && i < count; i++) call(rests[i], LANE);
}

/* Have a resting thread return for a job. */
EXPORT void hope_call(struct rest *rest) { call(rest, JOB); }

/* Rests until called once: for a lane, which has been driven then, or else for a job. */
EXPORT void hope_rest(struct rest *rest) {
    unsigned found;
    while (!(found = atomic_load(&rest->word))) futex(&rest->word, FUTEX_WAIT, 0, NULL);
    atomic_fetch_sub(&rest->word, found & LANE ? LANE : JOB);
    if (!(found & LANE)) return;
    for (int i = 0; i < CALLS && rest->next[i]; i++) call(rest->next[i], LANE);
    struct run *run = rest->run;
    struct lane *lane = &run->lane[rest->lane];
    if (lane->seat && sched_setaffinity(0, sizeof *lane->seat, lane->seat)) fail(run, lane, lane->seat_index, errno);
    else hope_drive(run, rest->lane, 0);
    hope_finish(run, rest->lane);
}

EXPORT int hope_stopped(struct run *run) { return atomic_load(&run->stop); }

EXPORT uint32_t hope_done(struct run *run, int lane) { return atomic_load(&run->lane[lane].done); }

EXPORT int hope_failure(struct run *run, int lane, int64_t *found) {
    struct lane *one = &run->lane[lane];
    found[0] = one->order, found[1] = one->failed, found[2] = one->status;
    return one->failed >= 0;
}

EXPORT void hope_begin(struct run *run, int first) {
    run->first = first;
    atomic_store(&run->failures, 0);
    for (int i = 0; i < run->lanes; i++) {
        run->lane[i].failed = -1;
        atomic_store(&run->lane[i].done, 0);
    }
    atomic_store(&run->stop, 0);
}

static int stands_on(const cpu_set_t *cpus) {
    int core = sched_getcpu();
    return core >= 0 && CPU_ISSET(core, cpus);
}

/* A whole run of one lane in the calling thread, which is bound to some CPUs meanwhile (NULL: it stays as it is).
   Binding costs a brief run a tenth of its time: the thread is left alone where it stands on one of them, until a run
   takes long because it was moved away. How many steps failed; below 0 the reason why the thread may not run there. */
EXPORT int hope_alone(struct run *run, int first, const cpu_set_t *cpus) {
    cpu_set_t before;
    int moves = cpus && !(run->brief && stands_on(cpus)) && !sched_getaffinity(0, sizeof before, &before) &&
                !CPU_EQUAL(&before, cpus);
    if (moves && sched_setaffinity(0, sizeof *cpus, cpus)) return -errno;
    int64_t began = now();
    hope_begin(run, first);
    hope_drive(run, 0, 0);
    run->brief = now() - began < BRIEF_NS;
    if (moves) sched_setaffinity(0, sizeof before, &before);
    return atomic_load(&run->failures);
}

EXPORT void hope_lane(struct run *run, int lane, const struct step *steps, int64_t count, int64_t *stamps,
                      const cpu_set_t *seat, int seat_index) {
    run->lane[lane].steps = steps;
    run->lane[lane].steps_count = count;
    run->lane[lane].stamps = stamps;
    run->lane[lane].seat = seat;
    run->lane[lane].seat_index = seat_index;
}

EXPORT void hope_close(struct run *run) {
    if (run) free(run->lane), free(run->waiter), free(run);
}

static void *zeroed(size_t size) {
    void *memory = NULL;
    return posix_memalign(&memory, LINE, size) ? NULL : memset(memory, 0, size);
}

/* A place to rest; NULL where there is no memory. */
EXPORT struct rest *hope_make_rest(void) { return zeroed(sizeof(struct rest)); }

EXPORT void hope_free_rest(struct rest *rest) { free(rest); }

/* A run of so many lanes; NULL where there is no memory. */
EXPORT struct run *hope_open(int lanes) {
    struct run *run = zeroed(sizeof *run);
    if (!run) return NULL;
    run->lanes = lanes;
    run->lane = zeroed((size_t)lanes * sizeof *run->lane);
    run->waiter = zeroed((size_t)(lanes + 1) * sizeof *run->waiter);
    if (run->lane && run->waiter) return run;
    hope_close(run);
    return NULL;
}

/* What steps may call besides the runtimes' functions. */

EXPORT int hope_copy(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    return 0;
}

/* A mark at the end of an output, to see whether a runtime that says that all went well has written anything. */
static const unsigned char MARK[8] = {0xA5, 0xC3, 0x5E, 0xF1, 0xA7, 0x3D, 0xE9, 0xFF};

EXPORT int hope_mark(unsigned char *at, size_t bytes) {
    memcpy(at, MARK + 8 - bytes, bytes);
    return 0;
}

EXPORT int hope_marked(const unsigned char *at, size_t bytes) { return memcmp(at, MARK + 8 - bytes, bytes) ? 0 : 1; }

/* ONNX Runtime hands its C API to libraries of custom operators. This one brings none and keeps what it is handed, per
 * thread: the API, and the session options, which belong to the caller. */
static _Thread_local const void *ort_api_base;
static _Thread_local void *ort_options;

EXPORT void *RegisterCustomOps(void *options, const void *api_base) {
    ort_options = options;
    ort_api_base = api_base;
    return NULL;
}

EXPORT const void *hope_ort_api_base(void) { return ort_api_base; }
EXPORT void *hope_ort_options(void) { return ort_options; }
