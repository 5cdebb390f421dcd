// sim.cpp - the simulated device: a CUDA runtime, streams, kernels and a little cuBLAS on the CPU, for tests only.
//
// Kernels run one at a time, block by block. A thread of a block is a call of the kernel; it runs through to its end
// or to a barrier or warp operation, where its stack is set aside (a fiber) and another thread goes on. Streams are
// queues that nobody works off until a call has to wait, or a draw says so: what runs next is drawn among all that
// CUDA would allow. A missing event or synchronisation therefore shows as a wrong result for many seeds.
//
// CONTENTS
//   >>state      devices, memory, streams, faults; one lock around all of it
//   >>fibers     stacks that can be set aside
//   >>block      the threads of a block, barriers, warp operations
//   >>queues     what may run, and running it
//   >>errors     faults, sticky errors
//   >>device     >>memory   >>stream   >>event   >>launch      the runtime's functions
//   >>cublas     products of float matrices
//   >>tests      sim.h
#include "cuda_runtime.h"
#include "sim.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN 1
#endif
#if defined(SIM_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// =====================================================================================================
// >>state   devices, memory, streams, faults; one lock around all of it
// =====================================================================================================

struct record { // what an event stands for: a place in a queue
    bool done;
    CUstream_st * stream;
};

struct operation {
    uint64_t number; // counts all operations in the order they were queued
    std::function<void()> run;
    std::shared_ptr<record> wait, mark; // waits for it; is done with it
};

struct CUstream_st {
    int device;
    bool is_legacy, is_blocking; // blocking streams and the legacy stream wait for each other
    bool is_dead;                // destroyed, with work left
    std::deque<operation> queue;
};

struct CUevent_st {
    int device;
    std::shared_ptr<record> last; // NULL: never recorded
};

enum memory_kind { ON_DEVICE, PAGE_LOCKED, REGISTERED };
struct memory {
    size_t size;
    int device;
    memory_kind kind;
};

struct device {
    cudaError_t lost; // a sticky error
    size_t used;
    CUstream_st * legacy;
    std::map<int, CUstream_st *> per_thread;
};

struct counter {
    std::string name;
    long calls;
    int fail_in; // 0: not
    cudaError_t error;
};

enum {
    MAX_DEVICES = 8,
    MAX_THREADS = 1024,
    SHARED_BYTES = 48 * 1024,
    SHARED_OPTIN_BYTES = GCUDA_SIM_CC >= 900   ? 227 * 1024
                         : GCUDA_SIM_CC >= 800 ? 99 * 1024
                                               : 64 * 1024
};

struct state {
    std::recursive_mutex lock;
    int n_devices;
    size_t memory_bytes;
    uint64_t seed, random;
    uint64_t n_operations;
    std::array<device, MAX_DEVICES> devices;
    std::map<uintptr_t, memory> memories;
    std::set<CUstream_st *> streams; // alive, made by the user
    std::vector<CUstream_st *> all_streams;
    std::set<CUevent_st *> events;
    std::set<void *> cublas;
    std::map<const void *, int> shared_limit; // of kernels, where it was raised
    std::deque<counter> counters;
    int n_failed;
    long n_violations;
};

static thread_local int current_device = 0;
static thread_local cudaError_t last_error = cudaSuccess;

static int thread_number() {
    static std::atomic<int> n{ 0 };
    static thread_local int mine = n++;
    return mine;
}

static uint64_t env_number(const char * name, uint64_t otherwise) {
    const char * text = getenv(name);
    return text != nullptr && *text != '\0' ? strtoull(text, nullptr, 0) : otherwise;
}

static long count_leaks(state & s, bool print);
static void at_exit();

static void configure(state & s, int n_devices, size_t memory_bytes, uint64_t seed) {
    s.n_devices = std::max(0, std::min<int>(n_devices, MAX_DEVICES));
    s.memory_bytes = memory_bytes;
    s.seed = seed;
    s.random = seed * 0x9E3779B97F4A7C15u + 0x632BE59BD9B4E019u;
    s.n_failed = 0;
    s.n_violations = 0;
    s.counters.clear();
    for (device & d : s.devices) { d.lost = cudaSuccess; }
}

// Never destroyed: other destructors may still call in.
static state & the() {
    static state * s = []() {
        state * fresh = new state();
        configure(*fresh, (int) env_number("GCUDA_SIM_DEVICES", 1), env_number("GCUDA_SIM_MEMORY_MB", 1024) << 20,
            env_number("GCUDA_SIM_SEED", 1));
        atexit(at_exit);
        return fresh;
    }();
    return *s;
}

typedef std::lock_guard<std::recursive_mutex> guard;

static uint64_t random_u64(state & s) { // xorshift
    s.random ^= s.random << 13;
    s.random ^= s.random >> 7;
    s.random ^= s.random << 17;
    return s.random;
}
static unsigned random_below(state & s, size_t n) { return (unsigned) ((random_u64(s) >> 32) * n >> 32); }

static void violation(const char * text) {
    the().n_violations++;
    fprintf(stderr, "simulated device: %s\n", text);
}

// =====================================================================================================
// >>fibers   stacks that can be set aside
// =====================================================================================================

#if defined(SIM_ASAN)
enum { STACK_BYTES = 256 * 1024 };
#else
enum { STACK_BYTES = 128 * 1024 };
#endif

struct context {
#if defined(__x86_64__)
    void * sp;
#else
    ucontext_t u;
#endif
    const void * bottom; // these for AddressSanitizer
    size_t size;
    void * fake;
};

struct fiber {
    context c;
    char * stack;
};

#if defined(__x86_64__)
// Saves the callee's registers and the stack pointer, takes up the other stack where it was left.
extern "C" void sim_switch_stack(void ** from, void * to);
asm(R"(
.text
.globl sim_switch_stack
.type sim_switch_stack, @function
sim_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size sim_switch_stack, .-sim_switch_stack
)");

static void raw_switch(context & from, context & to) { sim_switch_stack(&from.sp, to.sp); }

static void raw_prepare(fiber & f, void (*entry)()) {
    void ** top = (void **) (f.stack + STACK_BYTES) - 1; // a return address, unused, aligned as behind a call
    top[0] = nullptr;
    top[-1] = (void *) entry;
    f.c.sp = top - 7; // six registers below it
}
#else // slower: changes the signal mask every time
static void raw_switch(context & from, context & to) { swapcontext(&from.u, &to.u); }

static void raw_prepare(fiber & f, void (*entry)()) {
    getcontext(&f.c.u);
    f.c.u.uc_stack.ss_sp = f.stack;
    f.c.u.uc_stack.ss_size = STACK_BYTES;
    f.c.u.uc_link = nullptr;
    makecontext(&f.c.u, entry, 0);
}
#endif

static context main_context; // of whoever runs a kernel
static context * came_from;  // the last one left

static void arrived(context * mine) {
#if defined(SIM_ASAN)
    __sanitizer_finish_switch_fiber(mine ? mine->fake : nullptr, &came_from->bottom, &came_from->size);
#else
    (void) mine;
#endif
}

static void switch_to(context & from, context & to) {
    came_from = &from;
#if defined(SIM_ASAN)
    __sanitizer_start_switch_fiber(&from.fake, to.bottom, to.size);
#endif
    raw_switch(from, to);
    arrived(&from);
}

static void fiber_main();

static void fiber_prepare(fiber & f) {
#if defined(SIM_ASAN)
    __asan_unpoison_memory_region(f.stack, STACK_BYTES);
#endif
    f.c.bottom = f.stack;
    f.c.size = STACK_BYTES;
    f.c.fake = nullptr;
    raw_prepare(f, fiber_main);
}

// A page below that nobody may touch stops a stack that grows too deep.
static fiber * fiber_new() {
    const size_t page = (size_t) sysconf(_SC_PAGESIZE);
    void * p =
        mmap(nullptr, STACK_BYTES + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, page, PROT_NONE) != 0) {
        fprintf(stderr, "simulated device: no memory for the stack of a thread\n");
        _exit(97);
    }
    fiber * f = new fiber();
    f->stack = (char *) p + page;
    fiber_prepare(*f);
    return f;
}

// =====================================================================================================
// >>block   the threads of a block, barriers, warp operations
// =====================================================================================================

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

struct lane {
    uint3 index;
    int number; // in the block
    fiber * at; // where its stack is
    bool is_over;
    int value; // of a barrier, then its result
    int from;  // of a shuffle
    uint64_t in[2], out[2];
};

struct meeting { // lanes of a warp at the same operation
    unsigned mask, here;
    sim_warp_op op;
};

struct block_state {
    const std::function<void()> * thread;
    int n, n_started, n_over;
    unsigned factor, offset; // thread i to start is number (factor * i + offset) % n
    bool is_mixed, failed;
    lane lanes[MAX_THREADS];
    std::vector<meeting> meetings[MAX_THREADS / 32];
    lane * ready[MAX_THREADS]; // a ring
    unsigned ready_head, n_ready;
    int barrier_what, n_at_barrier;
    long n_nonzero;
    std::vector<fiber *> all, idle;
    fiber * running;
    lane * here;
    void * shared; // dynamic
};
static block_state & b = *new block_state(); // never destroyed, as the state

static void push_ready(lane * l) { b.ready[(b.ready_head + b.n_ready++) % MAX_THREADS] = l; }

static lane * pop_ready() {
    const unsigned head = b.ready_head % MAX_THREADS;
    if (b.is_mixed) {
        std::swap(b.ready[head], b.ready[(b.ready_head + random_below(the(), b.n_ready)) % MAX_THREADS]);
    }
    b.ready_head++;
    b.n_ready--;
    return b.ready[head];
}

static fiber * take_idle() {
    if (b.idle.empty()) {
        b.all.push_back(fiber_new());
        return b.all.back();
    }
    fiber * f = b.idle.back();
    b.idle.pop_back();
    return f;
}

// Who goes on when the running thread cannot: one that has not begun, one that is ready, or nobody.
static context & next_context() {
    if (b.failed) { return main_context; }
    if (b.n_started < b.n) { return take_idle()->c; }
    return b.n_ready > 0 ? pop_ready()->at->c : main_context;
}

static void start_thread() {
    lane & l = b.lanes[(b.factor * (unsigned) b.n_started + b.offset) % (unsigned) b.n];
    b.n_started++;
    b.here = &l;
    threadIdx = l.index;
    (*b.thread)();
    l.is_over = true;
    b.n_over++;
}

static void fiber_main() {
    arrived(nullptr);
    fiber * self = nullptr;
    for (fiber * f : b.all) { // once a stack
        if ((char *) &self >= f->stack && (char *) &self < f->stack + STACK_BYTES) { self = f; }
    }
    for (;;) {
        b.running = self;
        while (b.n_started < b.n && !b.failed) { start_thread(); }
        b.idle.push_back(self);
        // the only one that is idle may be this very stack
        context & to = b.n_ready > 0 && !b.failed ? pop_ready()->at->c : main_context;
        switch_to(self->c, to);
    }
}

static void wait_here() {
    lane * me = b.here;
    fiber * f = me->at = b.running;
    switch_to(f->c, next_context());
    b.running = f;
    b.here = me;
    threadIdx = me->index;
}

static void fail_block(const char * text) {
    violation(text);
    b.failed = true;
    wait_here(); // for ever
}

int sim_barrier(int what, int value) {
    lane * me = b.here;
    if (b.n_at_barrier > 0 && b.barrier_what != what) {
        fail_block("threads of a block are at different kinds of barriers");
    }
    b.barrier_what = what;
    b.n_nonzero += value != 0;
    me->from = -1; // waits at a barrier
    if (++b.n_at_barrier < b.n) {
        wait_here();
        return me->value;
    }
    const long n = b.n_nonzero;
    const int result = what == 1 ? (int) n : what == 2 ? n == b.n : n > 0;
    b.n_at_barrier = 0;
    b.n_nonzero = 0;
    for (int i = 0; i < b.n; ++i) {
        b.lanes[i].value = result;
        if (&b.lanes[i] != me) { push_ready(&b.lanes[i]); }
    }
    return result;
}

int sim_lane() { return b.here->number % 32; }
void * sim_dynamic_shared() { return b.shared; }

static uint32_t reduce(sim_warp_op op, uint32_t x, uint32_t y) {
    switch (op) {
        case SIM_ADD: return x + y;
        case SIM_MIN_U: return std::min(x, y);
        case SIM_MAX_U: return std::max(x, y);
        case SIM_MIN_S: return (uint32_t) std::min((int32_t) x, (int32_t) y);
        case SIM_MAX_S: return (uint32_t) std::max((int32_t) x, (int32_t) y);
        case SIM_AND: return x & y;
        case SIM_OR: return x | y;
        default: return x ^ y;
    }
}

// All lanes of the mask are here: results for each, before any of them goes on.
static void meet(const meeting & m, lane * warp) {
    uint32_t total = 0;
    bool is_first = true;
    for (int i = 0; i < 32 && m.op > SIM_SHUFFLE; ++i) {
        if ((m.mask >> i & 1u) == 0) { continue; }
        const uint32_t v = (uint32_t) warp[i].in[0];
        total = m.op == SIM_BALLOT ? total | (v & 1u) << i : is_first ? v : reduce(m.op, total, v);
        is_first = false;
    }
    for (int i = 0; i < 32; ++i) {
        lane & l = warp[i];
        if ((m.mask >> i & 1u) == 0) { continue; }
        l.out[0] = total;
        if (m.op == SIM_SHUFFLE && l.from >= 0 && l.from < 32 && (m.mask >> l.from & 1u) != 0) {
            memcpy(l.out, warp[l.from].in, sizeof(l.out));
        } else if (m.op == SIM_SHUFFLE) { // no such lane: anything
            memset(l.out, 0xEE, sizeof(l.out));
        }
        if (&l != b.here) { push_ready(&l); }
    }
}

void sim_warp(sim_warp_op op, unsigned mask, const void * in, void * out, size_t size, int from) {
    lane * me = b.here;
    const int warp = me->number / 32;
    const unsigned bit = 1u << (me->number % 32);
    std::vector<meeting> & meetings = b.meetings[warp];
    size_t k = 0;
    while (k < meetings.size() && meetings[k].mask != mask) { ++k; }
    if (k == meetings.size()) { meetings.push_back(meeting{ mask, 0, op }); }
    if ((mask & bit) == 0) { fail_block("a lane is not in its own mask"); }
    if (meetings[k].op != op) { fail_block("lanes of a warp are at different warp operations"); }
    memcpy(me->in, in ? in : me->in, size);
    me->from = from;
    meetings[k].here |= bit;
    if (meetings[k].here == mask) {
        const meeting m = meetings[k];
        meetings.erase(meetings.begin() + (long) k);
        meet(m, &b.lanes[32 * warp]);
    } else {
        wait_here();
    }
    if (out != nullptr) { memcpy(out, me->out, size); }
}

static void begin_block(uint3 index) {
    state & s = the();
    static const unsigned factors[] = { 1, 1, 5, 7, 11, 13, 29, 31 };
    blockIdx = index;
    b.is_mixed = s.seed != 0;
    b.factor = b.is_mixed ? factors[random_below(s, 8)] : 1;
    while (std::__gcd(b.factor, (unsigned) b.n) != 1) { b.factor++; }
    b.offset = b.is_mixed ? random_below(s, (size_t) b.n) : 0;
    b.n_started = b.n_over = b.n_at_barrier = 0;
    b.n_nonzero = 0;
    b.ready_head = b.n_ready = 0;
    b.failed = false;
    for (int i = 0; i < b.n; ++i) { b.lanes[i].is_over = false; }
    if (b.shared != nullptr) { memset(b.shared, 0xEE, 256); } // not cleared between blocks either
}

// Threads that wait for what will never happen are given up with their stacks.
static void give_up() {
    for (std::vector<meeting> & m : b.meetings) { m.clear(); }
    b.idle = b.all;
    for (fiber * f : b.all) { fiber_prepare(*f); }
}

static bool run_block(uint3 index) {
    begin_block(index);
    switch_to(main_context, take_idle()->c);
    if (b.n_over == b.n && !b.failed) { return true; }
    if (!b.failed) {
        char text[200];
        snprintf(text, sizeof(text),
            "block %u: %d of %d threads wait at a barrier, %d are over, the others wait for lanes of their warp",
            index.x, b.n_at_barrier, b.n, b.n_over);
        violation(text);
    }
    give_up();
    return false;
}

static void prepare_lanes() {
    for (int i = 0; i < b.n; ++i) {
        lane & l = b.lanes[i];
        const unsigned u = (unsigned) i;
        l.number = i;
        l.index = uint3{ u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y };
    }
}

static cudaError_t run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> & thread) {
    state & s = the();
    const uint64_t n = (uint64_t) grid.x * grid.y * grid.z, first = s.seed != 0 ? random_below(s, n) : 0;
    gridDim = grid;
    blockDim = block;
    b.thread = &thread;
    b.n = (int) (block.x * block.y * block.z);
    b.shared = nullptr;
    if (shared_bytes > 0 && posix_memalign(&b.shared, 128, std::max<size_t>(shared_bytes, 256)) != 0) {
        return cudaErrorLaunchOutOfResources;
    }
    prepare_lanes();
    bool ok = true;
    for (uint64_t i = 0; i < n && ok; ++i) {
        const uint64_t k = (first + i) % n;
        ok = run_block(
            uint3{ (unsigned) (k % grid.x), (unsigned) (k / grid.x % grid.y), (unsigned) (k / grid.x / grid.y) });
    }
    free(b.shared);
    return ok ? cudaSuccess : cudaErrorLaunchFailure;
}

// =====================================================================================================
// >>queues   what may run, and running it
// =====================================================================================================

static void lose_device(int index, cudaError_t error) {
    state & s = the();
    s.devices[(size_t) index].lost = error;
    for (CUstream_st * q : s.all_streams) {
        if (q->device != index) { continue; }
        for (operation & o : q->queue) {
            if (o.mark) { o.mark->done = true; }
        }
        q->queue.clear();
    }
}

// The blocking stream in the way of a legacy operation, the other way round, or NULL.
static CUstream_st * in_the_way(CUstream_st * q) {
    const uint64_t number = q->queue.front().number;
    for (CUstream_st * other : the().all_streams) {
        const bool excludes = other->device == q->device &&
                              ((q->is_legacy && other->is_blocking) || (q->is_blocking && other->is_legacy));
        if (excludes && !other->queue.empty() && other->queue.front().number < number) { return other; }
    }
    return nullptr;
}

static bool is_runnable(CUstream_st * q) {
    if (q->queue.empty()) { return false; }
    const operation & o = q->queue.front();
    return (!o.wait || o.wait->done) && in_the_way(q) == nullptr;
}

// A stream whose first operation brings this one nearer.
static CUstream_st * towards(CUstream_st * q) {
    const operation & o = q->queue.front();
    if (o.wait && !o.wait->done) { return towards(o.wait->stream); }
    CUstream_st * other = in_the_way(q);
    return other ? towards(other) : q;
}

static void run_first(CUstream_st * q) {
    const operation o = std::move(q->queue.front());
    q->queue.pop_front();
    if (o.run) { o.run(); }
    if (o.mark) { o.mark->done = true; }
    if (q->is_dead && q->queue.empty()) {
        std::vector<CUstream_st *> & all = the().all_streams;
        all.erase(std::find(all.begin(), all.end(), q));
        delete q;
    }
}

static bool run_any(state & s) {
    std::vector<CUstream_st *> can;
    for (CUstream_st * q : s.all_streams) {
        if (is_runnable(q)) { can.push_back(q); }
    }
    if (can.empty()) { return false; }
    run_first(can[random_below(s, can.size())]);
    return true;
}

// Runs until the operations of the stream up to that number are done; how much else runs meanwhile differs.
static void run_until(state & s, CUstream_st * q, uint64_t number) {
    const unsigned others = random_below(s, 4);
    while (!q->queue.empty() && q->queue.front().number <= number) {
        if (random_below(s, 4) >= others || !run_any(s)) {
            if (!q->queue.empty()) { run_first(towards(q)); }
        }
    }
}

static void run_all(state & s, int device_index) {
    for (size_t i = 0; i < s.all_streams.size();) { // streams go when they were dead
        CUstream_st * q = s.all_streams[i];
        if (q->device == device_index && !q->queue.empty()) {
            run_until(s, q, UINT64_MAX);
            i = 0;
        } else {
            ++i;
        }
    }
}

static void now_and_then(state & s) {
    if (random_below(s, 8) == 0) {
        for (unsigned n = random_below(s, 4) + 1; n > 0 && run_any(s); --n) {}
    }
}

static void enqueue(CUstream_st * q, std::function<void()> run, std::shared_ptr<record> wait = nullptr,
    std::shared_ptr<record> mark = nullptr) {
    state & s = the();
    q->queue.push_back(operation{ ++s.n_operations, std::move(run), std::move(wait), std::move(mark) });
    now_and_then(s);
}

static CUstream_st * stream_new(int device_index, bool is_legacy, bool is_blocking) {
    CUstream_st * q = new CUstream_st();
    q->device = device_index;
    q->is_legacy = is_legacy;
    q->is_blocking = is_blocking;
    the().all_streams.push_back(q);
    return q;
}

// NULL for a handle that is none.
static CUstream_st * stream_of(cudaStream_t handle) {
    state & s = the();
    device & d = s.devices[(size_t) current_device];
    if (handle == nullptr || handle == cudaStreamLegacy) {
        if (d.legacy == nullptr) { d.legacy = stream_new(current_device, true, false); }
        return d.legacy;
    }
    if (handle == cudaStreamPerThread) {
        CUstream_st *& q = d.per_thread[thread_number()];
        if (q == nullptr) { q = stream_new(current_device, false, true); }
        return q;
    }
    if (s.streams.count(handle) == 0) {
        violation("a stream that is destroyed or was never made");
        return nullptr;
    }
    return handle;
}

// =====================================================================================================
// >>errors   faults, sticky errors
// =====================================================================================================

static bool is_sticky(cudaError_t e) {
    return e == cudaErrorECCUncorrectable || e == cudaErrorNvlinkUncorrectable ||
           (e >= cudaErrorIllegalAddress && e <= cudaErrorLaunchFailure && e != cudaErrorLaunchOutOfResources &&
               e != cudaErrorPeerAccessAlreadyEnabled && e != cudaErrorPeerAccessNotEnabled &&
               e != cudaErrorHostMemoryAlreadyRegistered && e != cudaErrorHostMemoryNotRegistered);
}

static cudaError_t fails(cudaError_t e) {
    if (e != cudaSuccess) { last_error = e; }
    return e;
}

static counter & counter_of(const char * name) {
    state & s = the();
    for (counter & c : s.counters) {
        if (c.name == name) { return c; }
    }
    s.counters.push_back(counter{ name, 0, 0, cudaSuccess });
    return s.counters.back();
}

// Counts a call; the error it was told to fail with.
static cudaError_t injected(const char * name) {
    counter & c = counter_of(name);
    c.calls++;
    if (c.fail_in == 0 || --c.fail_in > 0) { return cudaSuccess; }
    the().n_failed++;
    return c.error;
}

// What each call begins with: a fault, or the sticky error of the device.
static cudaError_t begin(const char * name, int device_index, bool needs_device = true) {
    const cudaError_t e = injected(name);
    if (e != cudaSuccess && is_sticky(e)) { lose_device(device_index, e); }
    if (e != cudaSuccess) { return fails(e); }
    return needs_device ? fails(the().devices[(size_t) device_index].lost) : cudaSuccess;
}

// How it ends when queued work was run meanwhile.
static cudaError_t finish(int device_index) { return fails(the().devices[(size_t) device_index].lost); }

#define SIM_BEGIN(name, device_index)                                                                                  \
    const guard held(the().lock);                                                                                      \
    do {                                                                                                               \
        const cudaError_t began = begin(name, device_index);                                                           \
        if (began != cudaSuccess) { return began; }                                                                    \
    } while (0)

extern "C" {

cudaError_t cudaGetLastError(void) {
    const guard held(the().lock);
    const cudaError_t lost = the().devices[(size_t) current_device].lost, e = lost != cudaSuccess ? lost : last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void) {
    const guard held(the().lock);
    const cudaError_t lost = the().devices[(size_t) current_device].lost;
    return lost != cudaSuccess ? lost : last_error;
}

const char * cudaGetErrorString(cudaError_t error) {
    switch ((int) error) {
#define X(name, number, text)                                                                                          \
    case number: return text;
        GCUDA_SIM_ERRORS(X)
#undef X
        default: return "unrecognized error code";
    }
}

const char * cudaGetErrorName(cudaError_t error) {
    switch ((int) error) {
#define X(name, number, text)                                                                                          \
    case number: return #name;
        GCUDA_SIM_ERRORS(X)
#undef X
        default: return "unrecognized error code";
    }
}

cudaError_t cudaDriverGetVersion(int * version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int * version) { return *version = CUDART_VERSION, cudaSuccess; }
// A driver with nothing to look up.
cudaError_t cudaGetDriverEntryPointByVersion(
    const char *, void ** function, unsigned, unsigned long long, enum cudaDriverEntryPointQueryResult * result) {
    *function = nullptr;
    *result = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// =====================================================================================================
// >>device
// =====================================================================================================

static bool is_device(int index) { return index >= 0 && index < the().n_devices; }

cudaError_t cudaGetDeviceCount(int * count) {
    const guard held(the().lock);
    *count = 0;
    const cudaError_t e = begin("cudaGetDeviceCount", current_device, false);
    if (e != cudaSuccess) { return e; }
    *count = the().n_devices;
    return *count > 0 ? cudaSuccess : fails(cudaErrorNoDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp * p, int index) {
    const guard held(the().lock);
    const cudaError_t e = begin("cudaGetDeviceProperties", current_device, false);
    if (e != cudaSuccess) { return e; }
    if (!is_device(index)) { return fails(cudaErrorInvalidDevice); }
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), "Simulated device %d", index);
    snprintf(p->uuid.bytes, sizeof(p->uuid.bytes), "simulated %d", index % MAX_DEVICES);
    p->totalGlobalMem = the().memory_bytes;
    p->sharedMemPerBlock = SHARED_BYTES;
    p->sharedMemPerBlockOptin = SHARED_OPTIN_BYTES;
    p->sharedMemPerMultiprocessor = SHARED_OPTIN_BYTES + 1024;
    p->major = GCUDA_SIM_CC / 100;
    p->minor = GCUDA_SIM_CC / 10 % 10;
    p->multiProcessorCount = 4;
    p->warpSize = warpSize;
    p->maxThreadsPerBlock = MAX_THREADS;
    p->regsPerBlock = 65536;
    p->pciBusID = index + 1;
    p->unifiedAddressing = 1;
    p->l2CacheSize = 1 << 20;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int * index) {
    const guard held(the().lock);
    const cudaError_t e = begin("cudaGetDevice", current_device, false);
    if (e != cudaSuccess) { return e; }
    if (the().n_devices == 0) { return fails(cudaErrorNoDevice); }
    *index = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
    const guard held(the().lock);
    const cudaError_t e = begin("cudaSetDevice", current_device, false);
    if (e != cudaSuccess) { return e; }
    if (!is_device(index)) { return fails(cudaErrorInvalidDevice); }
    current_device = index;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    SIM_BEGIN("cudaDeviceSynchronize", current_device);
    run_all(the(), current_device);
    return finish(current_device);
}

cudaError_t cudaDeviceCanAccessPeer(int * can, int index, int peer) {
    SIM_BEGIN("cudaDeviceCanAccessPeer", current_device);
    if (!is_device(index) || !is_device(peer)) { return fails(cudaErrorInvalidDevice); }
    *can = index != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    SIM_BEGIN("cudaDeviceEnablePeerAccess", current_device);
    return !is_device(peer) || peer == current_device ? fails(cudaErrorInvalidDevice)
           : flags != 0                               ? fails(cudaErrorInvalidValue)
                                                      : cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    SIM_BEGIN("cudaDeviceDisablePeerAccess", current_device);
    return !is_device(peer) ? fails(cudaErrorInvalidDevice) : cudaSuccess;
}

// =====================================================================================================
// >>memory   malloc's, so that AddressSanitizer knows its ends; new memory is NaN, or -1
// =====================================================================================================

// The allocation that holds all these bytes, or NULL.
static const memory * memory_of(const void * ptr, size_t size, bool on_device) {
    state & s = the();
    const uintptr_t p = (uintptr_t) ptr;
    auto it = s.memories.upper_bound(p);
    if (it == s.memories.begin()) { return nullptr; }
    --it;
    const memory & m = it->second;
    const bool fits = p - it->first <= m.size && size <= m.size - (p - it->first);
    return fits && (m.kind == ON_DEVICE) == on_device ? &m : nullptr;
}

static cudaError_t memory_new(void ** ptr, size_t size, memory_kind kind) {
    void * p = nullptr;
    if (posix_memalign(&p, 256, size) != 0) { return fails(cudaErrorMemoryAllocation); }
    memset(p, 0xFF, size);
    the().memories[(uintptr_t) p] = memory{ size, current_device, kind };
    *ptr = p;
    return cudaSuccess;
}

static cudaError_t memory_free(void * ptr, memory_kind kind) {
    state & s = the();
    if (ptr == nullptr) { return cudaSuccess; }
    auto it = s.memories.find((uintptr_t) ptr);
    if (it == s.memories.end() || it->second.kind != kind) {
        violation("memory is freed that was not allocated so");
        return fails(cudaErrorInvalidValue);
    }
    const memory m = it->second;
    s.memories.erase(it);
    if (kind == ON_DEVICE) { s.devices[(size_t) m.device].used -= m.size; }
    if (kind != REGISTERED) { free(ptr); }
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t * n_free, size_t * n_total) {
    SIM_BEGIN("cudaMemGetInfo", current_device);
    *n_total = the().memory_bytes;
    *n_free = the().memory_bytes - the().devices[(size_t) current_device].used;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void ** ptr, size_t size) {
    SIM_BEGIN("cudaMalloc", current_device);
    device & d = the().devices[(size_t) current_device];
    *ptr = nullptr;
    if (size == 0) { return cudaSuccess; }
    if (size > the().memory_bytes - d.used) { return fails(cudaErrorMemoryAllocation); }
    const cudaError_t e = memory_new(ptr, size, ON_DEVICE);
    d.used += e == cudaSuccess ? size : 0;
    return e;
}

// Waits for the device that the memory is on, as CUDA does. What frees does so even when it fails, as on a lost device.
cudaError_t cudaFree(void * ptr) {
    const guard held(the().lock);
    const cudaError_t began = begin("cudaFree", current_device);
    const memory * m = memory_of(ptr, 0, true);
    if (m != nullptr) { run_all(the(), m->device); }
    const cudaError_t e = memory_free(ptr, ON_DEVICE);
    return began != cudaSuccess ? began : e != cudaSuccess ? e : finish(current_device);
}

cudaError_t cudaHostAlloc(void ** ptr, size_t size, unsigned) {
    SIM_BEGIN("cudaHostAlloc", current_device);
    *ptr = nullptr;
    return size == 0 ? cudaSuccess : memory_new(ptr, size, PAGE_LOCKED);
}

cudaError_t cudaFreeHost(void * ptr) {
    const guard held(the().lock);
    const cudaError_t began = begin("cudaFreeHost", current_device);
    for (int i = 0; i < the().n_devices; ++i) { run_all(the(), i); }
    const cudaError_t e = memory_free(ptr, PAGE_LOCKED);
    return began != cudaSuccess ? began : e;
}

cudaError_t cudaHostRegister(void * ptr, size_t size, unsigned) {
    SIM_BEGIN("cudaHostRegister", current_device);
    if (ptr == nullptr || size == 0) { return fails(cudaErrorInvalidValue); }
    const uintptr_t p = (uintptr_t) ptr;
    for (const auto & other : the().memories) {
        if (p < other.first + other.second.size && other.first < p + size) {
            return fails(cudaErrorHostMemoryAlreadyRegistered);
        }
    }
    the().memories[p] = memory{ size, current_device, REGISTERED };
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void * ptr) {
    const guard held(the().lock);
    const cudaError_t began = begin("cudaHostUnregister", current_device);
    auto it = the().memories.find((uintptr_t) ptr);
    if (it == the().memories.end() || it->second.kind != REGISTERED) { return fails(cudaErrorHostMemoryNotRegistered); }
    for (int i = 0; i < the().n_devices; ++i) { run_all(the(), i); }
    return memory_free(ptr, REGISTERED), began;
}

// Device memory was there when the copy was queued; it must still be when it runs.
static void copy_now(
    int device_index, void * dst, bool dst_on_device, const void * src, bool src_on_device, size_t size) {
    if ((dst_on_device && memory_of(dst, size, true) == nullptr) ||
        (src_on_device && memory_of(src, size, true) == nullptr)) {
        violation("a queued copy uses device memory that was freed");
        lose_device(device_index, cudaErrorIllegalAddress);
        return;
    }
    memcpy(dst, src, size);
}

// Pageable sources are read before the call returns, pageable destinations are written before it returns; page-locked
// memory is used when the stream comes to it.
static cudaError_t copy_async(
    void * dst, const void * src, size_t size, bool dst_on_device, bool src_on_device, CUstream_st * q) {
    if (size == 0) { return cudaSuccess; }
    if ((memory_of(dst, size, true) != nullptr) != dst_on_device ||
        (memory_of(src, size, true) != nullptr) != src_on_device) {
        return fails(cudaErrorInvalidValue);
    }
    const bool stage = !src_on_device && memory_of(src, size, false) == nullptr,
               wait = !dst_on_device && memory_of(dst, size, false) == nullptr;
    std::shared_ptr<std::vector<char>> staged;
    if (stage) { staged = std::make_shared<std::vector<char>>((const char *) src, (const char *) src + size); }
    const int device_index = q->device;
    enqueue(
        q, [=]() { copy_now(device_index, dst, dst_on_device, staged ? staged->data() : src, src_on_device, size); });
    if (wait || (!dst_on_device && !src_on_device)) { run_until(the(), q, the().n_operations); }
    return finish(device_index);
}

cudaError_t cudaMemcpyAsync(void * dst, const void * src, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaMemcpyAsync", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) { return fails(cudaErrorInvalidMemcpyDirection); }
    const bool is_default = kind == cudaMemcpyDefault;
    const bool to = is_default ? memory_of(dst, size, true) != nullptr
                               : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from = is_default ? memory_of(src, size, true) != nullptr
                                 : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return copy_async(dst, src, size, to, from, q);
}

cudaError_t cudaMemcpy(void * dst, const void * src, size_t size, enum cudaMemcpyKind kind) {
    const guard held(the().lock);
    const cudaError_t e = cudaMemcpyAsync(dst, src, size, kind, cudaStreamLegacy);
    if (e == cudaSuccess) { run_until(the(), stream_of(cudaStreamLegacy), the().n_operations); }
    return e != cudaSuccess ? e : finish(current_device);
}

cudaError_t cudaMemcpyPeerAsync(
    void * dst, int dst_device, const void * src, int src_device, size_t size, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaMemcpyPeerAsync", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    const memory *to = memory_of(dst, size, true), *from = memory_of(src, size, true);
    if (to == nullptr || from == nullptr || to->device != dst_device || from->device != src_device) {
        return fails(cudaErrorInvalidValue);
    }
    return copy_async(dst, src, size, true, true, q);
}

cudaError_t cudaMemsetAsync(void * ptr, int value, size_t size, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaMemsetAsync", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    if (size == 0) { return cudaSuccess; }
    if (memory_of(ptr, size, true) == nullptr) { return fails(cudaErrorInvalidValue); }
    const int device_index = q->device;
    enqueue(q, [=]() {
        if (memory_of(ptr, size, true) != nullptr) {
            memset(ptr, value, size);
        } else {
            violation("a queued memset uses device memory that was freed");
            lose_device(device_index, cudaErrorIllegalAddress);
        }
    });
    return finish(device_index);
}

// =====================================================================================================
// >>stream
// =====================================================================================================

cudaError_t cudaStreamCreateWithPriority(cudaStream_t * stream, unsigned flags, int) {
    SIM_BEGIN("cudaStreamCreateWithPriority", current_device);
    if (flags > cudaStreamNonBlocking) { return fails(cudaErrorInvalidValue); }
    *stream = stream_new(current_device, false, flags == cudaStreamDefault);
    the().streams.insert(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t * stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

// Returns at once; what is queued still runs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    const guard held(the().lock);
    state & s = the();
    if (s.streams.count(stream) == 0) {
        violation("a stream is destroyed that is none");
        return fails(cudaErrorInvalidResourceHandle);
    }
    const cudaError_t began = begin("cudaStreamDestroy", stream->device);
    s.streams.erase(stream);
    stream->is_dead = true;
    if (stream->queue.empty()) {
        s.all_streams.erase(std::find(s.all_streams.begin(), s.all_streams.end(), stream));
        delete stream;
    }
    return began;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaStreamSynchronize", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    run_until(the(), q, the().n_operations);
    return finish(q->device);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaStreamQuery", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    const bool done = q->queue.empty();
    if (random_below(the(), 2) == 0) { run_any(the()); }
    const cudaError_t lost = finish(q->device);
    return lost != cudaSuccess ? lost : done ? cudaSuccess : fails(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaStreamWaitEvent", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr || the().events.count(event) == 0) { return fails(cudaErrorInvalidResourceHandle); }
    if (event->last != nullptr && !event->last->done) { enqueue(q, nullptr, event->last); }
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*fn)(void *), void * user) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaLaunchHostFunc", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    enqueue(q, [=]() { fn(user); });
    return cudaSuccess;
}

// =====================================================================================================
// >>event
// =====================================================================================================

static bool is_event(cudaEvent_t event) {
    if (the().events.count(event) != 0) { return true; }
    violation("an event that is destroyed or was never made");
    return false;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t * event, unsigned) {
    SIM_BEGIN("cudaEventCreateWithFlags", current_device);
    *event = new CUevent_st();
    (*event)->device = current_device;
    the().events.insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaEventRecord", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr || !is_event(event) || event->device != q->device) {
        return fails(cudaErrorInvalidResourceHandle);
    }
    event->last = std::make_shared<record>(record{ false, q });
    enqueue(q, nullptr, nullptr, event->last);
    return finish(q->device);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const guard held(the().lock);
    const bool is_one = is_event(event);
    const cudaError_t e = begin("cudaEventSynchronize", is_one ? event->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (!is_one) { return fails(cudaErrorInvalidResourceHandle); }
    const std::shared_ptr<record> last = event->last;
    while (last != nullptr && !last->done) {
        if (random_below(the(), 2) == 0 || !run_any(the())) {
            if (!last->done) { run_first(towards(last->stream)); }
        }
    }
    return finish(event->device);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    const guard held(the().lock);
    const bool is_one = is_event(event);
    const cudaError_t e = begin("cudaEventQuery", is_one ? event->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (!is_one) { return fails(cudaErrorInvalidResourceHandle); }
    const bool done = event->last == nullptr || event->last->done;
    if (random_below(the(), 2) == 0) { run_any(the()); }
    const cudaError_t lost = finish(event->device);
    return lost != cudaSuccess ? lost : done ? cudaSuccess : fails(cudaErrorNotReady);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const guard held(the().lock);
    if (!is_event(event)) { return fails(cudaErrorInvalidResourceHandle); }
    const cudaError_t began = begin("cudaEventDestroy", event->device);
    the().events.erase(event);
    delete event;
    return began;
}

} // extern "C"

// =====================================================================================================
// >>launch
// =====================================================================================================

static bool is_launchable(const cudaLaunchConfig_t * c, size_t shared_limit) {
    const dim3 &g = c->gridDim, &t = c->blockDim;
    const uint64_t n_threads = (uint64_t) t.x * t.y * t.z;
    return g.x > 0 && g.x <= 2147483647u && g.y > 0 && g.y <= 65535u && g.z > 0 && g.z <= 65535u && n_threads > 0 &&
           n_threads <= MAX_THREADS && t.z <= 64 && c->dynamicSmemBytes <= shared_limit;
}

cudaError_t sim_func_set_shared(const void * kernel, int value) {
    SIM_BEGIN("cudaFuncSetAttribute", current_device);
    if (value < 0 || value > SHARED_OPTIN_BYTES) { return fails(cudaErrorInvalidValue); }
    the().shared_limit[kernel] = value;
    return cudaSuccess;
}

cudaError_t sim_launch(const cudaLaunchConfig_t * config, const void * kernel, std::function<void()> thread) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(config->stream);
    const cudaError_t e = begin("cudaLaunchKernelEx", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr || q->device != current_device) { return fails(cudaErrorInvalidResourceHandle); }
    const auto limit = the().shared_limit.find(kernel);
    if (!is_launchable(config, limit == the().shared_limit.end() ? (size_t) SHARED_BYTES : (size_t) limit->second)) {
        return fails(cudaErrorInvalidConfiguration);
    }
    const dim3 grid = config->gridDim, block = config->blockDim;
    const size_t shared_bytes = config->dynamicSmemBytes;
    const int device_index = q->device;
    enqueue(q, [=]() {
        cudaError_t err = injected("kernel");
        err = err == cudaSuccess ? run_grid(grid, block, shared_bytes, thread) : err;
        if (err != cudaSuccess) { lose_device(device_index, err); }
    });
    return finish(device_index);
}

// =====================================================================================================
// >>cublas   products of float matrices
// =====================================================================================================

extern "C" int cublasCreate_v2(void ** handle);
extern "C" int cublasDestroy_v2(void * handle);
extern "C" int cublasSetStream_v2(void * handle, cudaStream_t stream);
extern "C" int cublasGemmStridedBatchedEx(void * handle, int op_a, int op_b, int m, int n, int k, const void * alpha,
    const void * a, int type_a, int lda, long long stride_a, const void * b, int type_b, int ldb, long long stride_b,
    const void * beta, void * c, int type_c, int ldc, long long stride_c, int n_batch, int compute, int algorithm);

enum { BLAS_NOT_INITIALIZED = 1, BLAS_INVALID_VALUE = 7, BLAS_EXECUTION_FAILED = 13, BLAS_NOT_SUPPORTED = 15 };

struct blas_handle {
    cudaStream_t stream;
    int device;
};

int cublasCreate_v2(void ** handle) {
    const guard held(the().lock);
    const int e = (int) injected("cublasCreate_v2");
    *handle = nullptr;
    if (e != 0) { return e; }
    if (the().devices[(size_t) current_device].lost != cudaSuccess) { return BLAS_NOT_INITIALIZED; }
    *handle = new blas_handle{ nullptr, current_device };
    the().cublas.insert(*handle);
    return 0;
}

int cublasDestroy_v2(void * handle) {
    const guard held(the().lock);
    const int e = (int) injected("cublasDestroy_v2");
    if (the().cublas.erase(handle) == 0) {
        violation("a cuBLAS handle that is destroyed or was never made");
        return BLAS_NOT_INITIALIZED;
    }
    delete (blas_handle *) handle;
    return e;
}

int cublasSetStream_v2(void * handle, cudaStream_t stream) {
    const guard held(the().lock);
    const int e = (int) injected("cublasSetStream_v2");
    if (e != 0) { return e; }
    if (the().cublas.count(handle) == 0) { return BLAS_NOT_INITIALIZED; }
    ((blas_handle *) handle)->stream = stream;
    return 0;
}

struct product {
    bool a_across, b_across; // transposed
    int m, n, k, lda, ldb, ldc;
    float alpha, beta;
};

// C = alpha A B + beta C, column by column, sums in double.
static void multiply(const product & p, const float * a, const float * b_, float * c) {
    for (int j = 0; j < p.n; ++j) {
        for (int i = 0; i < p.m; ++i) {
            double sum = 0.0;
            const float *x = p.a_across ? a + (int64_t) i * p.lda : a + i,
                        *y = p.b_across ? b_ + j : b_ + (int64_t) j * p.ldb;
            const int64_t dx = p.a_across ? 1 : p.lda, dy = p.b_across ? p.ldb : 1;
            for (int64_t l = 0; l < p.k; ++l) { sum += (double) x[l * dx] * (double) y[l * dy]; }
            float & out = c[(int64_t) j * p.ldc + i];
            out = p.alpha * (float) sum + (p.beta != 0.0f ? p.beta * out : 0.0f);
        }
    }
}

int cublasGemmStridedBatchedEx(void * handle, int op_a, int op_b, int m, int n, int k, const void * alpha,
    const void * a, int type_a, int lda, long long stride_a, const void * b_, int type_b, int ldb, long long stride_b,
    const void * beta, void * c, int type_c, int ldc, long long stride_c, int n_batch, int, int) {
    const guard held(the().lock);
    const int e = (int) injected("cublasGemmStridedBatchedEx");
    if (e != 0) { return e; }
    if (the().cublas.count(handle) == 0) { return BLAS_NOT_INITIALIZED; }
    if (type_a != 0 || type_b != 0 || type_c != 0) { return BLAS_NOT_SUPPORTED; }
    const bool a_fits = lda >= std::max(1, op_a != 0 ? k : m), b_fits = ldb >= std::max(1, op_b != 0 ? n : k);
    if (m < 0 || n < 0 || k < 0 || n_batch < 0 || !a_fits || !b_fits || ldc < std::max(1, m)) {
        return BLAS_INVALID_VALUE;
    }
    CUstream_st * q = stream_of(((blas_handle *) handle)->stream);
    if (q == nullptr || q->device != ((blas_handle *) handle)->device ||
        the().devices[(size_t) q->device].lost != cudaSuccess) {
        return BLAS_EXECUTION_FAILED;
    }
    const product p = { op_a != 0, op_b != 0, m, n, k, lda, ldb, ldc, *(const float *) alpha, *(const float *) beta };
    enqueue(q, [=]() {
        for (int i = 0; i < n_batch; ++i) {
            multiply(
                p, (const float *) a + i * stride_a, (const float *) b_ + i * stride_b, (float *) c + i * stride_c);
        }
    });
    return 0;
}

// =====================================================================================================
// >>tests   sim.h
// =====================================================================================================

static long count_leaks(state & s, bool print) {
    long n[3] = { 0, 0, 0 };
    for (const auto & m : s.memories) { n[m.second.kind]++; }
    const long total =
        n[ON_DEVICE] + n[PAGE_LOCKED] + n[REGISTERED] + (long) (s.streams.size() + s.events.size() + s.cublas.size());
    if (total > 0 && print) {
        fprintf(stderr,
            "simulated device: alive: %ld device, %ld page-locked, %ld registered memory; %zu streams, %zu events, %zu "
            "cuBLAS handles\n",
            n[ON_DEVICE], n[PAGE_LOCKED], n[REGISTERED], s.streams.size(), s.events.size(), s.cublas.size());
    }
    return total;
}

static void at_exit() {
    state & s = the();
    if (count_leaks(s, true) + s.n_violations > 0) {
        fflush(nullptr);
        _exit(97);
    }
}

extern "C" {

void sim_reset(int n_devices, size_t memory_bytes, uint64_t seed) {
    const guard held(the().lock);
    for (int i = 0; i < the().n_devices; ++i) { run_all(the(), i); }
    configure(the(), n_devices, memory_bytes, seed);
    current_device = 0;
    last_error = cudaSuccess;
}

void sim_fail(const char * api, int k, cudaError_t error) {
    const guard held(the().lock);
    counter & c = counter_of(api);
    c.fail_in = k;
    c.error = error;
}

int sim_failed(void) {
    const guard held(the().lock);
    return the().n_failed;
}

long sim_counts(const char * api) {
    const guard held(the().lock);
    return counter_of(api).calls;
}

const char * sim_api(int index) {
    const guard held(the().lock);
    state & s = the();
    return index >= 0 && (size_t) index < s.counters.size() ? s.counters[(size_t) index].name.c_str() : nullptr;
}

long sim_leaks(void) {
    const guard held(the().lock);
    return count_leaks(the(), true);
}

long sim_violations(void) {
    const guard held(the().lock);
    return the().n_violations;
}

} // extern "C"
