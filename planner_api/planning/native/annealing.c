/* Windowed annealing (search/annealing.py says what it does). One large function: all that it calls is inlined, for
 * passing the arrays would take longer than most of their work. */
#include "moves.h"
#include "timing.h"

/* Longest way from a part's finish through what reads it at `since` or later to the end. */
INLINE double later(const Arrays *a, const State *s, word op, word part, word since) {
    const word *m = s->mode;
    word here = m[op * a->width + part * FIELDS + HOME];
    double tail = -INFINITY;
    for (word t = a->writes_at[op]; t < a->writes_at[op + 1]; t++) {
        word tensor = a->writes[t];
        for (word k = a->readers_at[tensor]; k < a->readers_at[tensor + 1]; k++) {
            word reader = a->readers[k];
            if (s->position[reader] < since) continue;
            word read = a->reads_at[reader];
            while (a->reads[read] != tensor) read++;
            for (word other = 0; other < m[reader * a->width + PARTS]; other++) {
                if (m[op * a->width + PARTS] > 1 && !takes_of(a, s, reader, other, read, part)) continue;
                word there = m[reader * a->width + other * FIELDS + HOME];
                double way = s->through[reader * a->most + other];
                if (there != here) {
                    way += a->lag[here];
                    word from = a->place[here], to = a->place[there];
                    if (a->carried[from * a->places + to])
                        way += a->cost[(tensor * a->places + from) * a->places + to];
                }
                tail = larger(tail, way);
            }
        }
    }
    return tail;
}

/* Longest paths to the end of what stands from `until` back to the window's end. */
INLINE void retail(const Arrays *a, const State *s, word low, word high, word until) {
    word slots = a->slots, length = a->length;
    double *line = s->front;
    const word *m = s->mode;
    for (word k = 0; k < 2 * slots; k++) line[k] = s->next_at[until * 2 * slots + k];
    for (word at = until - 1; at >= high; at--) {
        word op = s->sequence[at], own = op * a->width;
        for (word part = m[own + PARTS] - 1; part >= 0; part--) {
            word here = m[own + part * FIELDS + HOME];
            double share = a->share[op * a->processors + here];
            double tail = a->export[op * a->processors + here] - a->due[op];
            tail = larger(tail, later(a, s, op, part, at + 1));
            for (word u = a->uses_at[here]; u < a->uses_at[here + 1]; u++)
                tail = larger(tail, fits(line, slots, a->uses[u] * length, (a->uses[u] + 1) * length, share));
            double through = s->spent[op * a->most + part] + tail;
            s->through[op * a->most + part] = through;
            for (word u = a->uses_at[here]; u < a->uses_at[here + 1]; u++)
                count_in(line, slots, a->uses[u] * length, (a->uses[u] + 1) * length, through, share);
        }
        for (word k = 0; k < 2 * slots; k++) s->next_at[at * 2 * slots + k] = line[k];
        double bypass = s->bypass_at[at + 1];
        for (word read = a->reads_at[op]; read < a->reads_at[op + 1]; read++) {
            word maker = a->producer[a->reads[read]], theirs = maker * a->width;
            if (maker < 0 || s->position[maker] >= low) continue;
            for (word part = 0; part < m[own + PARTS]; part++)
                for (word k = 0; k < m[theirs + PARTS]; k++)
                    if (m[theirs + PARTS] == 1 || takes_of(a, s, op, part, read, k)) {
                        word home = m[theirs + k * FIELDS + HOME];
                        double lag = home != m[own + part * FIELDS + HOME] ? a->lag[home] : 0.0;
                        double way = s->finish[maker * a->most + k] + lag + s->through[op * a->most + part];
                        bypass = larger(bypass, way);
                    }
        }
        s->bypass_at[at] = bypass;
    }
}

/* Longest path that leaves what was timed up to `until` by a resource. */
INLINE double on_resources(const Arrays *a, const State *s, word until) {
    double value = -INFINITY;
    const double *next = s->next_at + until * 2 * a->slots;
    for (word k = 0; k < a->slots; k++) {
        double share = next[a->slots + k];
        if (share <= 0.0) continue;
        word first = k / a->length * a->length;
        double free = a->length == 1 ? s->front[k] : fits(s->front, a->slots, first, first + a->length, share);
        value = larger(value, free + next[k]);
    }
    return value;
}

/* The end of a plan timed up to `until`, as the tails see it; beyond `limit` any value that is, too. */
INLINE double estimate(const Arrays *a, const State *s, const Window *w, word until, double peak, double limit) {
    double value = larger(larger(peak, s->bypass_at[until]), on_resources(a, s, until));
    for (word c = 0; value <= limit && c < w->crossings; c++) {
        word op = w->crossing[c];
        if (w->far[op] < until || s->position[op] >= until) continue;
        for (word part = 0; part < s->mode[op * a->width + PARTS]; part++)
            value = larger(value, s->finish[op * a->most + part] + later(a, s, op, part, until));
    }
    return value;
}

/* Anneal a window of a timed plan; without moves time the plan.
 *
 * `hot` and `cold` are the first and last temperatures in microseconds, `random` is one word of random state. The plan
 * is left with the best modes and order met, its times with those of the last one accepted.
 *
 * Returns the largest done - due (with nothing due the makespan); of a window its best, as the tails see it. */
EXPORTED double hope_anneal(const Arrays *arrays, const State *state, const Window *window, word moves, double hot,
                            double cold, uint64_t *random) {
    /* Copies: the compiler knows of them that no kernel writes into them. */
    const Arrays a_ = *arrays, *a = &a_;
    const State s_ = *state, *s = &s_;
    const Window w_ = *window, *w = &w_;
    word n = a->ops, low = w->low, high = w->high, behind = n;
    double current = INFINITY, best = INFINITY;
    double ratio = pow(cold / hot, 1.0 / (double)more(1, moves - 1)), temperature = hot / ratio / ratio;
    for (word at = moves == 0 ? n - 1 : -1; at >= 0; at--) {
        s->position[s->sequence[at]] = at;
        if (s->mode[s->sequence[at] * a->width + PARTS] > 1) find_regions(a, s, s->sequence[at]);
    }
    for (word number = 1; number < moves + 2; number++) {
        temperature *= ratio;
        if (behind > high && moves > 0) {
            retail(a, s, low, high, behind);
            behind = high;
        }
        /* The first trial changes nothing: it times the whole plan, or, where there are moves, what they begin from. */
        Change change = {0, NONE, NONE};
        double hope = 0.0, limit = INFINITY;
        word first = moves > 0 ? high : low, until = moves > 0 ? high : n;
        if (number > 1) {
            draw(random, s->draws);
            change = propose(a, s, low, high, number);
            if (change.changes < 0 || (change.changes == 0 && change.source < 0)) {
                if (change.changes < 0) change.changes = -change.changes - 1;
                take_back(a, s, change);
                continue;
            }
            for (word k = 0; k < change.changes; k++) {
                word op = s->changed[k];
                hope += w->saving[op];
                first = less(first, s->position[op]);
                until = more(until, w->reach_change[op]);
            }
            if (change.source >= 0) {
                word op = s->sequence[change.target];
                first = less(first, less(change.source, change.target));
                until = more(until, w->reach_move[op]);
                hope += w->saving[op];
            }
            limit = current - temperature * log(larger(s->draws[3], 1e-300));
        }
        /* Past the window only what is paid for the ops that were changed can become less, by `hope` at most: near
         * enough to turn most moves down at the window's end. */
        double value;
        for (word start = first, stop;; start = stop) {
            stop = start < high ? high : until;
            value = trial(a, s, first, start, stop, high, limit, number);
            if (stop == high && until > high && value <= limit) {
                value = larger(value, on_resources(a, s, high) - hope);
                value = larger(value, s->bypass_at[high] - hope);
            }
            if (stop >= until || !(value <= limit)) break;
        }
        if (value <= limit && moves > 0) value = estimate(a, s, w, until, value, limit);
        if (value > limit) {
            reject(a, s, first);
            take_back(a, s, change);
            continue;
        }
        current = value;
        accept(a, s, first, until, high);
        if (moves == 0) return value;
        if (s->counts[RETIMED]) behind = until;
        if (current < best || number == 1) {
            best = current;
            for (word at = low; at < high; at++) {
                s->best_sequence[at] = s->sequence[at];
                copy_mode(a, s->mode, s->sequence[at], s->best, s->sequence[at]);
            }
        }
    }
    for (word at = low; at < high; at++) {
        s->sequence[at] = s->best_sequence[at];
        copy_mode(a, s->best, s->sequence[at], s->mode, s->sequence[at]);
    }
    return best;
}

/* Whether the parts of a chained op read nothing but the same parts of what they read. */
EXPORTED int hope_holds_on(const Arrays *a, const State *s, word op) { return holds_on(a, s, op); }
