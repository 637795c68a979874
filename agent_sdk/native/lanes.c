/* Lanes outside the interpreter: one thread per lane walks an array of steps and calls the runtimes' C functions.
 *
 * A run is a few counters. Each lane counts what it has finished; whoever needs that looks at the counter for a moment,
 * yields while that is cheap, and then sleeps on a futex, at once where a link is part of it; who is woken helps to wake
 * the others. While a lane computes it holds the resources of its segment, which the device's arbiter grants
 * (`arbiter.h`); while it waits for data it holds none, and who publishes that data claims them for it. Between runs the
 * lanes' threads rest here too, so that a run begins on all of them without the interpreter. Nothing here allocates
 * during a run or knows Python: a step that only Python can make is a function pointer like any other.
 *
 * Memory order. Counters are stored and looked at sequentially consistently where somebody may sleep: a sleeper says so
 * before it looks a last time, a publisher stores before it looks for sleepers. Plain looks are acquire loads.
 */
#include "arbiter.h"
#include "halves.h"
#include "ordinary.h"
#include "sequence.h"
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    LOOKS = 16,             /* looks with the CPU's pause between two readings of the clock */
    AWAKE_NS = 2000000,     /* how long a wait stays awake before it sleeps */
    GIVEN_NS = 1500,        /* a yield that took longer has given the core to somebody for a while: a gang's worker, mostly, */
    DEAR_NS = 1000000,      /* and this one to somebody else's work */
    SHY = 16, SHYEST = 4096,/* waits that go straight to sleep after such a yield: doubled each time, up to this */
    GLANCE_NS = 200000000,  /* how long the caller sleeps at most: a signal just before it fell asleep wakes nobody */
    BRIEF_NS = 500000,      /* runs that end sooner are not worth moving a thread for that stands where it should */
    LOST_NS = 16000000,     /* a bound thread that loses its core to others more often than that steps aside; a slice of
                             * the kernel's scheduler is 3 to 4 ms, and so is what it then waits */
    JUDGED_NS = 50000000,   /* what bound threads work before that is judged */
    ASIDE = 16, MOST_ASIDE = 1024,  /* runs for which they step aside: doubled where it is no better then, up to this */
    HOLDING_NS = 20000000,  /* the kernel's slices of a thread that computes alone and holds its core from run to run, */
    PROMPT_NS = 100000,     /* and of those that others wait for: who wakes with shorter slices than whoever has the core comes at once */
    CALLS = 2               /* whom each wakes; a call takes a few microseconds of who makes it */
};
#define FINISHED UINT32_MAX
#define TURNED_AWAY INT64_MIN   /* the status of a step that the arbiter refused, */
#define AGAIN (INT64_MIN + 1)   /* and of one whose caller shall look for signals before it is done */

enum operation { STAMP, BIND, WAIT, LENT, ENTER, CALL, CALL_POINTER, CALL_IF, CALL_AGAIN, DONE };

struct step {
    int32_t operation;
    int32_t index;          /* by which a failure is told: the bound call that this is part of */
    int64_t a, b;           /* BIND: mask, its bytes. WAIT, LENT: lane, count; last argument: whether it sleeps at once.
                             * ENTER: mask, key's index; first argument: whether one resource of the mask will do.
                             * CALL_AGAIN: not yet. CALL_IF: on which occasions. CALL, CALL_AGAIN: how many calls before
                             * it stands what it ends, 0: nothing. DONE: count, the resources that the lane's next
                             * segment does not need */
    void *function;         /* CALL, CALL_AGAIN: returns int, 0 is well. CALL_POINTER: returns a pointer, NULL is well */
    void *arguments[5];
};

/* How a thread's waits went: those to come that go straight to sleep, how many the next dear yield makes that, and how
 * often somebody else took the core that it yielded. */
struct patience { uint32_t shyness, skip, given; };

struct lane {
    _Alignas(LINE) atomic_uint done;
    _Alignas(LINE) const struct step *steps;
    int64_t steps_count;
    int64_t *stamps;        /* nanoseconds at the arbiter behind others in this run; then readings of the clock */
    const int64_t *keys;    /* per segment, beside the run's own; NULL: all 0 */
    const cpu_set_t *seat;  /* where its own thread is bound first; NULL: it stays where it is */
    const cpu_set_t *beside;/* and where it may go when it steps aside from there; NULL: it does not */
    int32_t seat_index;     /* by which it is told that this failed */
    int32_t gang;           /* whether others compute with its thread, and wait for it */
    int32_t moves;          /* whether its thread is bound to other CPUs on the way */
    int32_t failed, order;  /* the failed step's index, -1 for none; its place among the failures of all lanes */
    int64_t status;
    int64_t at, stamped;    /* where a walk that looks for signals goes on */
    uint64_t held;          /* resources */
    int granted;            /* whether `held` was claimed on its behalf for the segment to come */
    struct patience patience;
    atomic_int owner;       /* WALKED by a thread, LEFT behind in a runtime that hangs, GONE */
    _Alignas(LINE) atomic_int target;   /* while its claim is PARKED: what it sleeps for, */
    atomic_uint wanted;
    int enters;             /* and whether it enters the arbiter then */
    struct claim claim;
};
enum { WALKED, LEFT, GONE };

/* Where a thread rests between runs: what it is called for, which is a lane at most and any number of jobs in Python. */
struct rest {
    _Alignas(LINE) atomic_uint word;
    struct run *run;
    int lane;
    struct rest *next[CALLS];   /* whom it calls in turn */
};
enum { LANE = 1, JOB = 2 };

struct run {
    struct arbiter *arbiter;
    int64_t key;            /* smallest first */
    int32_t lanes, occasions;
    int32_t brief;          /* whether the run before took less than BRIEF_NS */
    int32_t keeps;          /* whether a lane that has ended still holds what its last segment held */
    int32_t aside, spell;   /* runs for which they still do, and how many the last time */
    atomic_llong worked, lost;  /* nanoseconds of bound threads since it was judged, and how often they lost their core */
    _Alignas(LINE) atomic_int stop;
    atomic_int failures, sleepers;
    _Alignas(LINE) atomic_uint ended;   /* of the lanes that resting threads walk, */
    uint32_t handed;                    /* which are so many */
    struct patience patience;           /* the caller's */
    struct lane *lane;
};

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

static int64_t key_of(const struct run *run, const struct lane *lane, int64_t segment) {
    return run->key + (lane->keys ? lane->keys[segment] : 0);
}

/* Has some of those woken whose wish is fulfilled, who do the same before anything else; claims for them what they need. */
static void spread(struct run *run, int lane, uint32_t count) {
    for (int i = 0, calls = 0; i < run->lanes && calls < CALLS; i++) {
        struct lane *other = &run->lane[i];
        struct claim *claim = &other->claim;
        if (atomic_load(&claim->state) != PARKED || atomic_load(&other->target) != lane || atomic_load(&other->wanted) > count)
            continue;
        if (other->enters) {
            submit(run->arbiter, claim, PARKED, ASLEEP, 0);
            calls += atomic_load(&claim->state) == GRANTED;
        } else {
            unsigned parked = PARKED;
            if (!atomic_compare_exchange_strong(&claim->state, &parked, READY)) continue;
            futex(&claim->state, FUTEX_WAKE, 1, NULL);
            calls++;
        }
    }
}

/* Counts, and has those woken whose wish it fulfils, if anybody sleeps. */
static void publish(struct run *run, int lane, uint32_t count) {
    atomic_store(&run->lane[lane].done, count);
    if (atomic_load(&run->sleepers)) spread(run, lane, count);
}

/* Counts a segment and gives back what the next one does not need. Where others want that, the lanes of this run that
 * sleep for this count are put in the list first: their keys decide, not who was quicker. */
static void finish_segment(struct run *run, int me, uint32_t count, uint64_t spare) {
    struct lane *lane = &run->lane[me];
    spare &= lane->held;
    lane->held &= ~spare;
    if (!spare) {
        publish(run, me, count);
    } else if (atomic_load(&run->arbiter->wanted) & spare) {
        publish(run, me, count);
        leave(run->arbiter, run, spare);
    } else {
        leave(run->arbiter, run, spare);
        publish(run, me, count);
    }
}

/* Stops every lane at the next step. Async-signal-safe. */
EXPORT void hope_stop(struct run *run) {
    int saved = errno;
    atomic_store(&run->stop, 1);
    for (int i = 0; i < run->lanes; i++) nudge(&run->lane[i].claim);
    errno = saved;
}

static const struct timespec GLANCE = {.tv_nsec = GLANCE_NS};

/* A lane's claim, which stands in no list now, made to want something. */
static struct claim *claim_of(const struct run *run, struct lane *lane, uint64_t mask, int either, int64_t segment) {
    struct claim *claim = &lane->claim;
    claim->mask = mask;
    claim->either = either;
    claim->key = key_of(run, lane, segment);
    claim->run = run;
    claim->beside = 0;
    return claim;
}

/* What a run's lanes hold by now, for who has slept since they took it. */
static uint64_t held_by(const struct run *run) {
    uint64_t held = 0;
    for (int i = 0; i < run->lanes; i++) held |= __atomic_load_n(&run->lane[i].held, __ATOMIC_RELAXED);
    return held;
}

/* Sleeps until a claim is granted or refused; `glances`: for a while, or until a signal comes, and nothing is left. */
static int64_t sleep_at_arbiter(struct run *run, struct lane *lane, int glances) {
    struct claim *claim = &lane->claim;
    for (int slept = 0;; slept = 1) {
        unsigned state = atomic_load(&claim->state);
        if (state == GRANTED) { lane->held = claim->mask; return 0; }
        if (state == REFUSED) return TURNED_AWAY;
        if (state == NUDGED) {
            if (withdraw(run->arbiter, claim)) return 0;    /* stopped, which the walk sees next */
        } else if (glances && slept) {
            uint64_t others = atomic_load(&run->arbiter->busy) & claim->mask & ~held_by(run);
            if (!withdraw(run->arbiter, claim)) continue;
            claim->beside |= others != 0;
            return AGAIN;
        } else {
            futex(&claim->state, FUTEX_WAIT, state, glances ? &GLANCE : NULL);
        }
    }
}

/* The same. The time since it `began` counts where it waited for others: a plan has its own lanes wait for one another. */
static int64_t rest_at_arbiter(struct run *run, struct lane *lane, int64_t began, int glances) {
    int64_t status = sleep_at_arbiter(run, lane, glances);
    if (lane->claim.beside) lane->stamps[0] += now() - began;
    return status;
}

/* Where a lane's thread is bound in this run; NULL: it stays where it is. */
static const cpu_set_t *seat_of(const struct run *run, const struct lane *lane) {
    return run->aside && lane->seat && lane->beside ? lane->beside : lane->seat;
}

static int stands_on(const cpu_set_t *cpus) {
    int core = sched_getcpu();
    return core >= 0 && CPU_ISSET(core, cpus);
}

/* Moves the calling thread to the core that it was granted, where the kernel may move it on from: two that compute would
 * share another core else, as long as the kernel finds none that idles. A brief run stays where the kernel has it. */
static void sit_down(const struct run *run, struct lane *lane) {
    int core = lane->held ? core_of(run->arbiter, lane->held) : -1;
    cpu_set_t there;
    if (core < 0 || run->brief || !lane->seat) return;
    CPU_ZERO(&there);
    CPU_SET(core, &there);
    if (stands_on(&there) || sched_setaffinity(0, sizeof there, &there)) return;
    sched_setaffinity(0, sizeof *lane->seat, seat_of(run, lane));
}

/* Takes one resource of a mask, as a bit: the core on which the calling thread stands where it can, which the kernel has
 * chosen; 0 where none is free. */
static uint64_t take_near(const struct run *run, uint64_t mask) {
    int core = sched_getcpu();
    for (uint64_t left = mask; left; left &= left - 1)
        if (core_of(run->arbiter, left) == core && take(run->arbiter, left & -left)) return left & -left;
    return take_one(run->arbiter, mask);
}

/* Takes the resources of a segment, all at once, or one of them where that will do: of those that its lane holds, if it
 * holds any. 0 also where the run was stopped meanwhile. */
static int64_t enter(struct run *run, struct lane *lane, uint64_t mask, int64_t segment, int either, int glances) {
    struct arbiter *arbiter = run->arbiter;
    if (lane->granted) { lane->granted = 0; return 0; }
    uint64_t have = lane->held & mask, need = !either ? mask : have ? have & -have : 0;
    uint64_t more = need & ~lane->held, less = lane->held & ~need;
    if (!(atomic_load(&arbiter->wanted) & ((need ? need : mask) | less))) {
        uint64_t taken = !need ? take_near(run, mask) : !more || take(arbiter, more) ? need : 0;
        if (taken) {
            lane->held = taken;
            leave(arbiter, run, less);
            return 0;
        }
    }
    int64_t began = now();
    struct claim *claim = claim_of(run, lane, mask, either, segment);
    atomic_store(&claim->state, QUEUED);
    if (atomic_load(&run->stop) || !submit(arbiter, claim, QUEUED, QUEUED, lane->held)) return 0;
    lane->held = 0;
    for (int i = 0; i < LOOKS && atomic_load(&claim->state) == QUEUED; i++) pause_cpu();
    unsigned queued = QUEUED;
    atomic_compare_exchange_strong(&claim->state, &queued, ASLEEP);
    return rest_at_arbiter(run, lane, began, glances);
}

/* Stays awake until a counter shows so much; 0 where it is better to sleep, or a look at the rest is due. Where the core
 * is `lent` to what is waited for, a dear yield says nothing about the waits to come. */
static int stay_awake(struct patience *patience, atomic_uint *counter, uint32_t count, int lent, int taken,
                      atomic_int *stop, int64_t until) {
    int64_t began = now();
    int awake = !taken;
    if (!lent && patience->skip) patience->skip--, awake = 0;
    for (;;) {
        for (int i = 0; i < LOOKS; i++) {
            pause_cpu();
            if (atomic_load_explicit(counter, memory_order_acquire) >= count) {
                if (awake && !lent) patience->shyness /= 2;
                return 1;
            }
        }
        int64_t before = now();
        if (!awake || before - began > AWAKE_NS || before >= until || (stop && atomic_load(stop))) return 0;
        sched_yield();
        int64_t away = now() - before;
        patience->given += away > GIVEN_NS;
        if (away > DEAR_NS) {
            awake = 0;
            if (lent) continue;
            uint32_t doubled = 2 * patience->shyness;
            patience->skip = patience->shyness = doubled < SHY ? SHY : doubled > SHYEST ? SHYEST : doubled;
        }
    }
}

/* Waits until a lane has finished so much, or the run is stopped. The segment that comes next takes the resources
 * `mask`; where this is the last wait before it (`enters`), they may have been claimed when this returns. */
static int64_t await(struct run *run, int me, const struct step *step, int glances) {
    int target = (int)step->a;
    uint32_t count = (uint32_t)step->b;
    uint64_t mask = (uint64_t)step->arguments[0];
    struct lane *lane = &run->lane[me];
    struct claim *claim = &lane->claim;
    atomic_uint *done = &run->lane[target].done;
    int64_t status = 0;
    if (atomic_load_explicit(done, memory_order_acquire) >= count) return 0;
    leave(run->arbiter, run, lane->held);
    lane->held = 0;
    int lent = step->operation == LENT;
    int taken = !lent && (atomic_load(&run->arbiter->busy) & mask);  /* another run computes where this would look */
    int far = step->arguments[4] != NULL;                            /* what crosses a link takes milliseconds */
    if (stay_awake(&lane->patience, done, count, lent, taken || far, &run->stop, INT64_MAX)) return 0;
    atomic_store(&lane->target, target);
    atomic_store(&lane->wanted, count);
    lane->enters = mask && step->arguments[1];
    claim_of(run, lane, mask, step->arguments[3] != NULL, (int64_t)step->arguments[2]);
    atomic_fetch_add(&run->sleepers, 1);
    for (;;) {
        unsigned parked = PARKED;
        atomic_store(&claim->state, PARKED);
        if (atomic_load(done) >= count || atomic_load(&run->stop)) {
            if (atomic_compare_exchange_strong(&claim->state, &parked, IDLE)) break;
        }
        for (int slept = 0; atomic_load(&claim->state) == PARKED; slept = 1) {
            parked = PARKED;
            if (!glances || !slept) futex(&claim->state, FUTEX_WAIT, PARKED, glances ? &GLANCE : NULL);
            else if (atomic_compare_exchange_strong(&claim->state, &parked, IDLE)) status = AGAIN;
        }
        unsigned state = atomic_load(&claim->state);
        if (status) break;
        if (state == READY) break;
        if (state == NUDGED && !withdraw(run->arbiter, claim)) {
            state = atomic_load(&claim->state);
            if (state == NUDGED) {              /* nobody had claimed anything for it */
                if (atomic_load(&run->stop)) break;
                continue;
            }
        } else if (state == NUDGED) {
            break;
        }
        status = rest_at_arbiter(run, lane, now(), glances);
        lane->granted = !status && lane->held;
        break;
    }
    atomic_fetch_sub(&run->sleepers, 1);
    /* Whatever ended the wait: who was called to spread the word must not keep it. */
    if (atomic_load(&run->sleepers)) spread(run, target, atomic_load(done));
    return status;
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

static int64_t call(const struct step *step) {
    void *const *x = step->arguments;
    return ((int (*)(void *, void *, void *, void *, void *))step->function)(x[0], x[1], x[2], x[3], x[4]);
}

static int64_t call_again(const struct step *step) {
    int64_t status;
    while ((status = call(step)) == step->a) sched_yield();  /* others may wait on this core too */
    return status;
}

/* After a call failed: those that follow in its segment and end what went well before it, whatever they say. */
static void wind_up(const struct step *failed, const struct step *end) {
    for (const struct step *step = failed + 1; step < end && step->operation >= CALL && step->operation != DONE; step++)
        if (step->b && step - step->b < failed) step->operation == CALL_AGAIN ? call_again(step) : call(step);
}

/* How often the calling thread has lost its core to others. */
static int64_t losses(void) {
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) ? 0 : usage.ru_nivcsw;
}

/* Where somebody else keeps computing on a core to which a thread is bound, both get half of it while other cores may be
 * idle: threads of other sessions that spin, other processes. The kernel finds a free core for a thread that may move. */
static void judge(struct run *run) {
    if (run->aside) {
        run->aside--;
        return;
    }
    int64_t worked = atomic_load(&run->worked), lost = atomic_load(&run->lost);
    if (!run->lane[0].beside || worked < JUDGED_NS) return;
    int often = lost * LOST_NS > worked;
    run->spell = !often ? 0 : !run->spell ? ASIDE : run->spell < MOST_ASIDE ? 2 * run->spell : MOST_ASIDE;
    run->aside = run->spell;
    atomic_store(&run->worked, 0);
    atomic_store(&run->lost, 0);
}

/* Walks one lane of a run to its end; 1: until it waits for long, where it `glances`, and holds nothing meanwhile. */
static int walk_steps(struct run *run, int me, int glances) {
    struct lane *lane = &run->lane[me];
    int64_t *stamps = lane->stamps + lane->stamped;
    const struct step *end = lane->steps + lane->steps_count;
    for (const struct step *step = lane->steps + lane->at; step < end; step++) {
        int64_t status = 0;
        void *const *x = step->arguments;
        switch (step->operation) {
        case STAMP:
            *stamps++ = now();
            break;
        case DONE:
            finish_segment(run, me, (uint32_t)step->a, run->keeps && step + 1 == end ? 0 : (uint64_t)step->b);
            break;
        case WAIT:
        case LENT:
            status = await(run, me, step, glances);
            break;
        case ENTER:
            status = enter(run, lane, (uint64_t)step->a, step->b, x[0] != NULL, glances);
            if (!status && x[0]) sit_down(run, lane);
            break;
        case BIND:
            if (!run->aside && sched_setaffinity(0, (size_t)step->b, (const cpu_set_t *)step->a)) status = errno;
            break;
        case CALL_IF:
            if (!(run->occasions & step->a)) break;
            /* fall through */
        case CALL:
            status = call(step);
            break;
        case CALL_AGAIN:    /* also where the run has been stopped: what a device is at work on must not be let go of */
            status = call_again(step);
            break;
        case CALL_POINTER:
            status = (int64_t)((void *(*)(void *, void *, void *, void *, void *))step->function)(x[0], x[1], x[2], x[3], x[4]);
            break;
        }
        if (status == AGAIN) {
            lane->at = step - lane->steps;
            lane->stamped = stamps - lane->stamps;
            return 1;
        }
        if (status) {
            fail(run, lane, step->index, status);
            if (step->operation >= CALL) wind_up(step, end);
            break;
        }
        /* A stopped run ends at a segment's border, never between the calls of one. */
        if (step->operation >= CALL && step->operation != DONE) continue;
        if (atomic_load_explicit(&run->stop, memory_order_relaxed)) break;
    }
    if (run->keeps) return 0;
    leave(run->arbiter, run, lane->held);
    lane->held = 0;
    return 0;
}

/* The same, and notes how often its thread lost its core meanwhile. The kernel counts what it gave away by yielding as
 * well: a lane that waits while a gang computes yields to the gang's worker on its core all the time, and a caller that
 * stepped aside for that would sit down on the core of one of its own workers, and wait there for it. */
static int walk(struct run *run, int me, int glances) {
    if (!run->lane[me].beside || run->aside || run->brief) return walk_steps(run, me, glances);
    struct patience *patience = &run->lane[me].patience;
    uint32_t given = patience->given;
    int64_t began = now(), before = losses();
    int again = walk_steps(run, me, glances);
    int64_t lost = losses() - before - (uint32_t)(patience->given - given);
    if (lost > 0) atomic_fetch_add(&run->lost, lost);
    atomic_fetch_add(&run->worked, now() - began);
    return again;
}

/* The kernel's `struct sched_attr`, as far as it goes back. */
struct scheduling { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; };
enum { SYS_SET_SCHEDULING = SYS_sched_setattr, KEEP_POLICY = 8 };

/* Asks the kernel for slices of so many nanoseconds for the calling thread, and those that it starts; 0: the usual ones.
 * Its share of the time stays what it is: who has shorter slices comes first when it wakes. Kernels before 6.12 ignore it. */
EXPORT void hope_slices(uint64_t ns) {
    struct scheduling wanted = {.size = sizeof wanted, .flags = KEEP_POLICY, .runtime = ns};
    wanted.nice = getpriority(PRIO_PROCESS, 0);
    syscall(SYS_SET_SCHEDULING, 0, &wanted, 0);
}

/* The same in the calling thread. `interruptible`: the main thread's, which Ctrl-C stops. 1: look for signals and call
 * it again. */
EXPORT int hope_drive(struct run *run, int me, int interruptible) {
    struct run *earlier = interruptible ? watch(run) : NULL;
    if (run->lanes > 1) hope_slices(PROMPT_NS);
    int again = walk(run, me, 1);
    if (run->lanes > 1) hope_slices(0);
    if (interruptible) unwatch(earlier);
    return again;
}

enum { IN_TIME = 1, TOO_LATE = 0, NOT_YET = -1 };

/* For the caller: until all lanes that were handed out have ended and left the run's memory alone, or the clock shows
 * `until`. Below 0: look for signals and ask again. */
EXPORT int hope_await(struct run *run, int64_t until) {
    if (stay_awake(&run->patience, &run->ended, run->handed, 0, 0, NULL, until)) return IN_TIME;
    for (int slept = 0;; slept = 1) {
        uint32_t ended = atomic_load(&run->ended);
        if (ended >= run->handed) return IN_TIME;
        int64_t left = until - now();
        if (left <= 0) return TOO_LATE;
        if (slept) return NOT_YET;
        struct timespec limit = {.tv_nsec = left < GLANCE_NS ? left : GLANCE_NS};
        futex(&run->ended, FUTEX_WAIT, ended, &limit);
    }
}

static void rouse(struct rest *rest, unsigned what) {
    atomic_fetch_add(&rest->word, what);
    futex(&rest->word, FUTEX_WAKE, 1, NULL);
}

/* Has lanes walked by the threads that rest there, none of which is called for a lane yet: some are called here, and
 * call others before anything else. */
EXPORT void hope_hand_out(struct run *run, int count, struct rest *const *rests, const int32_t *lanes) {
    run->handed = count;
    for (int i = 0, next = CALLS; i < count; i++) {
        rests[i]->run = run;
        rests[i]->lane = lanes[i];
        atomic_store(&run->lane[lanes[i]].owner, WALKED);
        for (int j = 0; j < CALLS; j++, next++) rests[i]->next[j] = next < count ? rests[next] : NULL;
    }
    for (int i = 0; i < CALLS && i < count; i++) rouse(rests[i], LANE);
}

/* Have a resting thread return for a job. */
EXPORT void hope_call(struct rest *rest) { rouse(rest, JOB); }

/* Rests until called for a job, and walks lanes meanwhile. 1: instead of a job it comes from a lane that was left
 * behind, whose run nobody waits for any more. */
EXPORT int hope_rest(struct rest *rest) {
    hope_slices(PROMPT_NS);
    for (;;) {
        unsigned found;
        while (!(found = atomic_load(&rest->word))) futex(&rest->word, FUTEX_WAIT, 0, NULL);
        atomic_fetch_sub(&rest->word, found & LANE ? LANE : JOB);
        if (!(found & LANE)) return 0;
        for (int i = 0; i < CALLS && rest->next[i]; i++) rouse(rest->next[i], LANE);
        struct run *run = rest->run;
        struct lane *lane = &run->lane[rest->lane];
        const cpu_set_t *seat = seat_of(run, lane);
        if (seat && sched_setaffinity(0, sizeof *seat, seat)) fail(run, lane, lane->seat_index, errno);
        else walk(run, rest->lane, 0);
        publish(run, rest->lane, FINISHED);
        if (atomic_exchange(&lane->owner, GONE) == LEFT) return 1;
        atomic_fetch_add(&run->ended, 1);
        /* NOTE: the run may be freed by now; the kernel only looks for sleepers at the address. */
        futex(&run->ended, FUTEX_WAKE, 1, NULL);
    }
}

/* Leaves a lane behind in a runtime that hangs; 0 where it has ended. What it holds is refused until it comes back. */
EXPORT int hope_leave_behind(struct run *run, int lane) {
    int walked = WALKED;
    if (!atomic_compare_exchange_strong(&run->lane[lane].owner, &walked, LEFT)) return 0;
    run->handed--;
    refuse(run->arbiter, run->lane[lane].held, 0);
    return 1;
}

EXPORT int hope_stopped(struct run *run) { return atomic_load(&run->stop); }

EXPORT uint32_t hope_done(struct run *run, int lane) { return atomic_load(&run->lane[lane].done); }

EXPORT int hope_failure(struct run *run, int lane, int64_t *found) {
    struct lane *one = &run->lane[lane];
    found[0] = one->order, found[1] = one->failed, found[2] = one->status;
    return one->failed >= 0;
}

/* Returns whether threads step aside in this run. */
EXPORT int hope_begin(struct run *run, int occasions, int64_t key) {
    judge(run);
    run->occasions = occasions;
    run->key = key;
    run->handed = run->keeps = 0;
    atomic_store(&run->ended, 0);
    atomic_store(&run->failures, 0);
    for (int i = 0; i < run->lanes; i++) {
        struct lane *lane = &run->lane[i];
        lane->failed = -1;
        lane->stamps[0] = lane->at = 0;
        lane->stamped = 1;
        lane->granted = 0;
        atomic_store(&lane->claim.state, IDLE);
        atomic_store(&lane->done, 0);
    }
    atomic_store(&run->stop, 0);
    return run->aside > 0;
}

/* A whole run of one lane in the calling thread, which is bound to the lane's seat meanwhile. Binding costs a brief run a
 * tenth of its time: the thread is left alone where it stands on one of those CPUs, until a run takes long because it was
 * moved away. How many steps failed; STOPPED where none did and the run was stopped; UNFINISHED: look for signals and
 * call it again, `resumed`; below 0 the reason why the thread may not run there. `held`, unless NULL: what its caller
 * holds, and hands to the run; afterwards what the run leaves to its caller. */
enum { STOPPED = 1 << 30, UNFINISHED };
EXPORT int hope_alone(struct run *run, int occasions, int64_t key, int interruptible, int resumed, uint64_t *held) {
    cpu_set_t before;
    if (!resumed) {
        hope_begin(run, occasions, key);
        run->keeps = held != NULL;
    }
    const cpu_set_t *cpus = seat_of(run, &run->lane[0]);
    int away = run->lane[0].moves, stays = !away && run->brief && cpus && stands_on(cpus);
    int moves = (cpus || away) && !stays && !sched_getaffinity(0, sizeof before, &before);
    int there = !cpus || stays || (moves && CPU_EQUAL(&before, cpus));
    if (!there && sched_setaffinity(0, sizeof *cpus, cpus)) return -errno;
    moves &= away || !there;
    if (held) hope_slices(run->lane[0].gang ? PROMPT_NS : HOLDING_NS);
    if (held) run->lane[0].held = *held, *held = 0;
    int64_t began = now();
    int again = hope_drive(run, 0, interruptible);
    if (held) *held = run->lane[0].held, run->lane[0].held = 0;
    if (held && !*held) hope_slices(0);
    run->brief = now() - began < BRIEF_NS;
    if (moves) sched_setaffinity(0, sizeof before, &before);
    if (again) return UNFINISHED;
    int failures = atomic_load(&run->failures);
    return failures ? failures : atomic_load(&run->stop) ? STOPPED : 0;
}

EXPORT void hope_lane(struct run *run, int lane, const struct step *steps, int64_t count, int64_t *stamps,
                      const cpu_set_t *seat, const cpu_set_t *beside, int gang, int seat_index) {
    run->lane[lane].steps = steps;
    run->lane[lane].steps_count = count;
    run->lane[lane].stamps = stamps;
    run->lane[lane].seat = seat;
    run->lane[lane].beside = beside;
    run->lane[lane].gang = gang;
    run->lane[lane].seat_index = seat_index;
    for (int64_t i = 0; i < count; i++) run->lane[lane].moves |= steps[i].operation == BIND;
}

/* Says which CPU each resource is, which the caller keeps; below 0: none. Runs on either of several cores move there. */
EXPORT void hope_cores(struct arbiter *arbiter, const int32_t *core) { arbiter->core = core; }

/* For how many runs they still step aside. */
EXPORT int hope_aside(struct run *run) { return run->aside; }

/* How often bound threads have lost their core since that was judged. */
EXPORT int64_t hope_lost(struct run *run) { return atomic_load(&run->lost); }

/* What is added to a run's key per segment of a lane; NULL: nothing. The caller keeps it. */
EXPORT void hope_keys(struct run *run, int lane, const int64_t *keys) { run->lane[lane].keys = keys; }

static void *zeroed(size_t size) {
    void *memory = NULL;
    return posix_memalign(&memory, LINE, size) ? NULL : memset(memory, 0, size);
}

/* A place to rest, an arbiter, a claim; NULL where there is no memory. */
EXPORT struct rest *hope_make_rest(void) { return zeroed(sizeof(struct rest)); }
EXPORT struct arbiter *hope_make_arbiter(void) { return zeroed(sizeof(struct arbiter)); }
EXPORT struct claim *hope_make_claim(void) { return zeroed(sizeof(struct claim)); }

EXPORT void hope_free(void *made) { free(made); }

EXPORT void hope_close(struct run *run) {
    if (run) free(run->lane), free(run);
}

/* A run of so many lanes; NULL where there is no memory. */
EXPORT struct run *hope_open(struct arbiter *arbiter, int lanes) {
    struct run *run = zeroed(sizeof *run);
    if (!run) return NULL;
    run->arbiter = arbiter;
    run->lanes = lanes;
    run->lane = zeroed((size_t)lanes * sizeof *run->lane);
    if (run->lane) return run;
    hope_close(run);
    return NULL;
}

/* For what runs outside of lanes: asks for resources, and says at once whether they were granted (1), or refused (-1). */
EXPORT int hope_ask(struct arbiter *arbiter, struct claim *claim, uint64_t mask, int64_t key) {
    claim->mask = mask;
    claim->key = key;
    if (!(atomic_load(&arbiter->wanted) & mask) && take(arbiter, mask)) {
        atomic_store(&claim->state, GRANTED);
        return 1;
    }
    atomic_store(&claim->state, QUEUED);
    submit(arbiter, claim, QUEUED, ASLEEP, 0);
    unsigned state = atomic_load(&claim->state);
    return state == GRANTED ? 1 : state == REFUSED ? -1 : 0;
}

/* Sleeps until that is known, or for a while: 0, look for signals and ask again. */
EXPORT int hope_ask_again(struct claim *claim) {
    for (int slept = 0;; slept = 1) {
        unsigned state = atomic_load(&claim->state);
        if (state == GRANTED || state == REFUSED) return state == GRANTED ? 1 : -1;
        if (slept) return 0;
        struct timespec limit = {.tv_nsec = GLANCE_NS};
        futex(&claim->state, FUTEX_WAIT, state, &limit);
    }
}

/* Gives back what was granted, or gives up asking. */
EXPORT void hope_forgo(struct arbiter *arbiter, struct claim *claim) {
    if (!withdraw(arbiter, claim) && atomic_exchange(&claim->state, IDLE) == GRANTED) leave(arbiter, NULL, claim->mask);
}

/* Turns away whoever asks, from now on. */
EXPORT void hope_shut(struct arbiter *arbiter) { refuse(arbiter, UINT64_MAX, 1); }

/* Gives back what a run has left to its caller, by the thread that walked it. */
EXPORT void hope_leave(struct arbiter *arbiter, uint64_t mask) {
    hope_slices(0);
    leave(arbiter, NULL, mask);
}

EXPORT uint64_t hope_busy(struct arbiter *arbiter) { return atomic_load(&arbiter->busy); }

/* How many stand in the list. */
EXPORT int hope_waiting(struct arbiter *arbiter) {
    int count = 0;
    lock(arbiter);
    for (struct claim *one = arbiter->first; one; one = one->next) count++;
    unlock(arbiter, &(struct grants){0});
    return count;
}

EXPORT void hope_sequence(const int64_t *table, int units, int processors, int from, const int64_t *free_at,
                          int64_t at, int64_t *answer) {
    best_sequence(table, units, processors, from, free_at, at, answer);
}

/* What steps may call besides the runtimes' functions. */

/* A mark at the end of an output, to see whether a runtime that says that all went well has written anything. */
static const unsigned char MARK[8] = {0xA5, 0xC3, 0x5E, 0xF1, 0xA7, 0x3D, 0xE9, 0xFF};

EXPORT int hope_mark(unsigned char *at, size_t bytes) {
    memcpy(at, MARK + 8 - bytes, bytes);
    return 0;
}

EXPORT int hope_marked(const unsigned char *at, size_t bytes) { return memcmp(at, MARK + 8 - bytes, bytes) ? 0 : 1; }

/* Whether so many floats of 2, 4 or 8 bytes are finite, and none exceeds 2**63. */
EXPORT int hope_ordinary(const void *floats, int64_t count, int bytes) {
    return bytes == 2 ? ordinary_halves(floats, count, 0x7BFF)
         : bytes == 4 ? ordinary_floats(floats, count, 0x5F000000)
                      : ordinary_doubles(floats, count, 0x43E0000000000000);
}

/* Float32 as float16, and back; 0 where a finite one is beyond float16, or one that comes back is infinite. */
EXPORT int hope_narrow(const void *floats, void *halves, int64_t count) { return narrow_floats(floats, halves, count); }
EXPORT int hope_widen(const void *halves, void *floats, int64_t count) { return widen_halves(halves, floats, count); }

/* An array at which a lane looks in each run, and what it saw. */
struct look { const void *floats; int64_t count; int32_t bytes, odd; };

EXPORT int hope_look(struct look *look) {
    look->odd = !hope_ordinary(look->floats, look->count, look->bytes);
    return 0;
}

/* What one pass of multiplying and adding over an array takes on the calling thread, nanoseconds: the last of those that
 * fit before a moment of the clock, of two at least. The clock is read here: threads that come back to an interpreter at
 * the same time wait for one another. */
EXPORT int64_t hope_pass(const float *data, int64_t count, int64_t until) {
    typedef float many __attribute__((vector_size(16), aligned(16), may_alias));
    enum { WIDTH = 8, OVER = 8 };
    static _Thread_local volatile float kept;
    const many *row = (const many *)data;
    many sum[WIDTH] = {{0}};
    int64_t took = 0, began = now();
    for (int passes = 0; passes < 2 || began < until; passes++) {
        for (int over = 0; over < OVER; over++)
            for (int64_t i = 0; i + WIDTH <= count / 4; i += WIDTH)
                for (int j = 0; j < WIDTH; j++) sum[j] = sum[j] * 0.5f + row[i + j];
        kept = sum[0][0] + sum[WIDTH - 1][3];
        int64_t ended = now();
        took = ended - began;
        began = ended;
    }
    return took;
}

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
