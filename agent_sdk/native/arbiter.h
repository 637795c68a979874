/* Who holds a core, and when: one arbiter per device, for all runs on it.
 *
 * A claim wants a set of resources (bits of a mask) at once, or any one of a set, with a key: the smallest goes first,
 * equal keys in the order of arrival. Nobody holds anything while it waits, so nothing locks up. The first that does not fit reserves
 * what it wants; later ones pass it only where they want none of that. Alone, a claim costs one compare-and-swap; a
 * lane that goes on with the same resources, where nobody wants them, costs one look.
 *
 * `busy` and `wanted` are the only words that the fast ways touch. Whoever is in the list has said so in `wanted` before
 * it looks at `busy`, and who leaves clears `busy` before it looks at `wanted`; both are sequentially consistent.
 */
#ifndef HOPE_ARBITER_H
#define HOPE_ARBITER_H
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LINE 64
enum { MOST_GRANTS = 64, MOST_TOLD = 2 * MOST_GRANTS };  /* a grant takes at least one bit */

/* What a claim's thread waits for. PARKED: data of its own run, asleep. QUEUED, ASLEEP: resources, awake or not.
 * READY: the data is there. NUDGED: something else happened; it looks again, under the lock. */
enum state { IDLE, PARKED, QUEUED, ASLEEP, READY, GRANTED, REFUSED, NUDGED };

struct claim {
    _Alignas(LINE) atomic_uint state;
    uint64_t mask;              /* what it wants; once it is granted, what it has */
    int either;                 /* whether any one resource of the mask will do */
    const void *run;            /* whose it is; NULL: nobody's among the runs of lanes */
    int beside;                 /* whether anybody but its run gave back some of that while it waited */
    int64_t key;
    uint64_t arrival;
    int linked;                 /* whether it is in the list; guarded by the arbiter's lock, like `next` */
    struct claim *next;
};

struct arbiter {
    _Alignas(LINE) atomic_ullong busy, wanted;
    _Alignas(LINE) atomic_uint lock;
    atomic_ullong refused;      /* held by runtimes that hang; all, once the device is closed */
    int closed;
    uint64_t arrivals;
    struct claim *first;
    const int32_t *core;        /* per resource the CPU that it is, below 0: none; NULL: none is */
};

struct grants {                 /* whom to wake after the lock was given back */
    int count;
    atomic_uint *word[MOST_TOLD];
};

static long futex(atomic_uint *word, int operation, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, timeout, NULL, 0);
}

static inline int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void lock(struct arbiter *arbiter) {
    unsigned was = 0;
    if (atomic_compare_exchange_strong(&arbiter->lock, &was, 1)) return;
    while (atomic_exchange(&arbiter->lock, 2)) futex(&arbiter->lock, FUTEX_WAIT, 2, NULL);
}

static void unlock(struct arbiter *arbiter, const struct grants *grants) {
    if (atomic_exchange(&arbiter->lock, 0) == 2) futex(&arbiter->lock, FUTEX_WAKE, 1, NULL);
    /* NOTE: a claim may be gone by now; the kernel only looks for sleepers at the address. */
    for (int i = 0; i < grants->count; i++) futex(grants->word[i], FUTEX_WAKE, 1, NULL);
}

/* The CPU that the lowest resource of a mask is; below 0: none. */
static int core_of(const struct arbiter *arbiter, uint64_t mask) {
    return arbiter->core ? arbiter->core[__builtin_ctzll(mask)] : -1;
}

static int take(struct arbiter *arbiter, uint64_t mask) {
    unsigned long long busy = atomic_load(&arbiter->busy);
    do
        if (busy & mask) return 0;
    while (!atomic_compare_exchange_weak(&arbiter->busy, &busy, busy | mask));
    return 1;
}

/* Takes one resource of a mask: which, as a bit; 0 where none is free. */
static uint64_t take_one(struct arbiter *arbiter, uint64_t mask) {
    unsigned long long busy = atomic_load(&arbiter->busy);
    uint64_t one;
    do
        if (!(one = mask & ~busy & -(mask & ~busy))) return 0;
    while (!atomic_compare_exchange_weak(&arbiter->busy, &busy, busy | one));
    return one;
}

/* Whether a claim can never be granted while this is refused. */
static int denied(const struct claim *claim, uint64_t refused) {
    return claim->either ? !(claim->mask & ~refused) : (claim->mask & refused) != 0;
}

/* What is refused counts as wanted: nobody takes it by the fast way. */
static void say_wanted(struct arbiter *arbiter) {
    uint64_t wanted = atomic_load(&arbiter->refused);
    for (struct claim *one = arbiter->first; one; one = one->next) wanted |= one->mask;
    atomic_store(&arbiter->wanted, wanted);
}

static void insert(struct arbiter *arbiter, struct claim *claim) {
    struct claim **at = &arbiter->first;
    claim->arrival = arbiter->arrivals++;
    while (*at && (*at)->key <= claim->key) at = &(*at)->next;
    claim->next = *at;
    claim->linked = 1;
    *at = claim;
    atomic_fetch_or(&arbiter->wanted, claim->mask);
}

static void unlink_claim(struct arbiter *arbiter, struct claim *claim) {
    struct claim **at = &arbiter->first;
    while (*at != claim) at = &(*at)->next;
    *at = claim->next;
    claim->linked = 0;
}

static void tell(struct claim *claim, unsigned state, struct grants *grants) {
    if (atomic_exchange(&claim->state, state) == ASLEEP) grants->word[grants->count++] = &claim->state;
}

/* Has in whoever fits, in the order of keys. With the lock held. */
static void dispatch(struct arbiter *arbiter, struct grants *grants) {
    uint64_t reserved = 0;
    struct claim *next;
    for (struct claim *one = arbiter->first; one; one = next) {
        next = one->next;
        uint64_t left = one->mask & ~reserved;
        if (!left || (!one->either && left != one->mask)) continue;
        uint64_t taken = one->either ? take_one(arbiter, left) : take(arbiter, left) ? left : 0;
        if (taken) {
            one->mask = taken;
            unlink_claim(arbiter, one);
            tell(one, GRANTED, grants);
        } else if (!reserved) {
            reserved = one->mask;
        }
    }
    say_wanted(arbiter);
}

/* Notes who has waited for somebody else than lanes of its own run. With the lock held. */
static void given_back(struct arbiter *arbiter, const void *run, uint64_t mask) {
    for (struct claim *one = arbiter->first; one; one = one->next) one->beside |= one->run != run && (one->mask & mask);
}

/* Puts a claim in the list, and only then gives back what its lane holds: the other way round a later key would get it.
 * `from` is the state that the claim must still show; 0 where it does not, and nothing has been done. */
static int submit(struct arbiter *arbiter, struct claim *claim, unsigned from, unsigned to, uint64_t leaves) {
    struct grants grants = {0};
    lock(arbiter);
    int submitted = atomic_compare_exchange_strong(&claim->state, &from, to);
    if (submitted) {
        if (denied(claim, atomic_load(&arbiter->refused))) tell(claim, REFUSED, &grants);
        else insert(arbiter, claim);
        atomic_fetch_and(&arbiter->busy, ~leaves);
        given_back(arbiter, claim->run, leaves);
        dispatch(arbiter, &grants);
    }
    unlock(arbiter, &grants);
    return submitted;
}

/* Gives back resources that a run holds. */
static void leave(struct arbiter *arbiter, const void *run, uint64_t mask) {
    if (!mask) return;
    atomic_fetch_and(&arbiter->busy, ~mask);
    if (!(atomic_load(&arbiter->wanted) & mask)) return;
    struct grants grants = {0};
    lock(arbiter);
    if (!arbiter->closed) atomic_fetch_and(&arbiter->refused, ~mask);  /* what hung has come back */
    given_back(arbiter, run, mask);
    dispatch(arbiter, &grants);
    unlock(arbiter, &grants);
}

/* Takes a claim out of the list; 0 where it was granted or refused before. */
static int withdraw(struct arbiter *arbiter, struct claim *claim) {
    struct grants grants = {0};
    lock(arbiter);
    int linked = claim->linked;
    if (linked) {
        unlink_claim(arbiter, claim);
        dispatch(arbiter, &grants);  /* it may have kept others out */
    }
    unlock(arbiter, &grants);
    return linked;
}

/* Turns away who wants any of this, now and until it is given back; `closed`: for ever. */
static void refuse(struct arbiter *arbiter, uint64_t mask, int closed) {
    int more;
    do {
        struct grants grants = {0};
        lock(arbiter);
        arbiter->closed |= closed;
        atomic_fetch_or(&arbiter->refused, mask);
        struct claim *next;
        more = 0;
        for (struct claim *one = arbiter->first; one; one = next) {
            next = one->next;
            if (!denied(one, atomic_load(&arbiter->refused))) continue;
            if (grants.count == MOST_GRANTS) { more = 1; break; }
            unlink_claim(arbiter, one);
            tell(one, REFUSED, &grants);
        }
        dispatch(arbiter, &grants);
        unlock(arbiter, &grants);
    } while (more);
}

/* Has a claim's thread look again. Takes no lock: async-signal-safe. */
static void nudge(struct claim *claim) {
    unsigned state = atomic_load(&claim->state);
    while (state == PARKED || state == QUEUED || state == ASLEEP)
        if (atomic_compare_exchange_weak(&claim->state, &state, NUDGED)) {
            futex(&claim->state, FUTEX_WAKE, 1, NULL);
            return;
        }
}
#endif
