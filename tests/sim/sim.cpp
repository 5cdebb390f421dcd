// sim.cpp - the simulated device: a CUDA runtime, streams, kernels and a little cuBLAS on the CPU, for tests only.
//
// Kernels run one at a time, block by block. A thread of a block is a call of the kernel. It runs to its end or to a
// barrier or warp operation, where its stack is saved (a fiber) and another thread continues. Streams are queues whose
// work runs when a call has to wait, or at random times. The next item is drawn from all that CUDA would allow. So a
// missing event or synchronization shows as a wrong result for many seeds.
//
// CONTENTS
//   >>state      devices, memory, streams, faults; one lock around all of it
//   >>fibers     stacks that can be set aside
//   >>block      the threads of a block, barriers, warp operations
//   >>mma        products of a warp
//   >>sm90       sim-sm90.h: mbarriers, copies in flight, products of a warpgroup
//   >>regions    addresses of device memory: closed to the host, open to kernels of the right device
//   >>grid       the blocks of a kernel, one after another
//   >>queues     what may run, and running it
//   >>errors     faults, sticky errors
//   >>device     >>memory   >>stream   >>event   >>launch   >>graph   >>external      the runtime's functions
//   >>driver     the functions that are looked up: contexts, virtual memory
//   >>cublas     products of float matrices
//   >>tests      sim.h
#include "cuda_fp16.h"
#include "cuda.h"
#include "cuda_runtime.h"
#include "sim.h"
#include "sim_mma.h"
#include "sim_sm90.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>
#include <ucontext.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define SIM_TSAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define SIM_TSAN 1
#endif
#if defined(SIM_TSAN)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(SIM_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// =====================================================================================================
// >>state   devices, memory, streams, faults; one lock around all of it
// =====================================================================================================

enum { MAX_DEVICES = 8 };

struct record { // what an event stands for: a place in a queue
    bool done;
    CUstream_st * stream;
    uint64_t time_ns; // once done
};

struct launch_of_kernel {
    const void * kernel;
    dim3 grid, block;
    size_t shared_bytes;
    sim_arguments arguments;
    bool is_overlapped; // with the previous kernel: all its threads have to wait
    int cluster;        // blocks of a cluster; 0: the kernel says it alone
};

struct operation {
    enum cudaGraphNodeType type;              // kernel: launch is set; others: run, or nothing
    std::shared_ptr<launch_of_kernel> launch; // never changed once shared
    std::function<void()> run;
    uint64_t cost_ns;                   // on the simulated clock
    std::function<bool()> ready;        // empty: always
    std::shared_ptr<record> wait, mark; // waits for it; is recorded when it has finished
    uint64_t number;                    // counts all operations in the order they were queued
    uint64_t queued_ns;
};

struct CUgraphNode_st {
    operation work;
    int device;
    std::vector<CUgraphNode_st *> after;
};

struct CUgraph_st {
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};

struct exec_node {
    operation work;
    int device;
    std::vector<size_t> after;
};

struct CUgraphExec_st {
    std::vector<exec_node> nodes;
    std::shared_ptr<record> last; // of its last launch
};

struct capture {
    uint64_t number;
    CUgraph_st * graph;
    enum cudaStreamCaptureMode mode;
    int thread, device;
    CUstream_st * origin;
    std::set<CUstream_st *> streams;
    bool is_invalid;
};

struct CUctx_st {
    int device;
    bool is_primary, is_active;
    int n_retained; // by the driver function
};

struct CUstream_st {
    int device;
    CUctx_st * context;          // NULL: the default streams, of all contexts
    bool is_legacy, is_blocking; // blocking streams and the legacy stream wait for each other
    bool is_dead;                // destroyed, with work left
    int priority;
    uint64_t time_ns;                    // when what has run of it was done
    capture * capturing;                 // or NULL
    std::vector<CUgraphNode_st *> heads; // what the next node comes after
    std::deque<operation> queue;
};

struct CUevent_st {
    int device;
    CUctx_st * context;
    unsigned flags;
    std::shared_ptr<record> last; // NULL: never recorded
    uint64_t captured;            // the number of the capture that it was recorded in, or 0
    std::vector<CUgraphNode_st *> heads;
};

struct physical { // of virtual memory management
    size_t size;
    int device;
    int fd;
    char * alias;
    int n_mapped;
    bool is_released;
};

enum memory_kind { ON_DEVICE, PAGE_LOCKED, REGISTERED, MAPPED, EXTERNAL, N_MEMORY_KINDS };
struct memory {
    size_t size;
    int device;
    memory_kind kind;
    char * alias;            // of device memory: see >>regions
    int rights[MAX_DEVICES]; // PROT_... of MAPPED and EXTERNAL memory, for kernels of each device
    physical * store;        // of MAPPED memory
    CUctx_st * context;
};

struct arena { // see >>regions
    uintptr_t at;
    char * alias;
    size_t n_used, cursor;           // bytes from the start that have ever been used; where to look next
    size_t n_filled;                 // bytes from the start that are 0xFF where nothing is allocated
    int key;                         // of the processor's memory protection; above 0, or there is none
    std::map<size_t, size_t> blocks; // places and sizes, redzones included
    bool is_open;
};

struct CUexternalMemory_st {
    int device, fd;
    size_t size;
};

struct CUexternalSemaphore_st {
    int device, fd;
    bool is_timeline;
    std::atomic<uint64_t> * value; // in the file, which others have too
};

struct device {
    cudaError_t lost; // a sticky error
    size_t used;
    CUctx_st primary;
    CUstream_st * legacy;
    std::map<int, CUstream_st *> per_thread;
    arena memory;
    bool peers[MAX_DEVICES];     // whose memory its kernels may use
    int peer_state[MAX_DEVICES]; // sim_peer()
    CUuuid uuid;
    char luid[8];
    unsigned luid_mask;
    int pci[3];                    // domain, bus, device
    std::map<int, int> attributes; // sim_attribute()
};

struct counter {
    std::string name;
    long calls;
    int fail_in; // 0: not
    cudaError_t error;
};

enum {
    MAX_THREADS = 1024,
    MAX_CLUSTER = 8,     // blocks
    STATIC_BYTES = 1024, // of shared memory: mbarriers
    GREATEST_PRIORITY = -5,
    SHARED_BYTES = 48 * 1024,
    SHARED_OPTIN_BYTES = GCUDA_SIM_CC >= 900   ? 227 * 1024
                         : GCUDA_SIM_CC >= 800 ? 99 * 1024
                                               : 64 * 1024
};

struct state {
    std::recursive_mutex lock;
    int n_held;                         // how often by the thread that has it
    int open_for = -1;                  // the device whose kernels may use memory now: see >>regions
    std::vector<uintptr_t> stray_pages; // opened after a forbidden access of the host
    int n_mapped;                       // MAPPED and EXTERNAL among the memories
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
    std::set<CUctx_st *> contexts;      // alive, made by the user
    std::map<uintptr_t, size_t> ranges; // reserved addresses
    std::map<unsigned long long, physical *> stores;
    std::set<CUexternalMemory_st *> external_memories;
    std::set<CUexternalSemaphore_st *> external_semaphores;
    std::set<capture *> captures;
    std::set<CUgraph_st *> graphs;
    std::set<CUgraphExec_st *> graph_execs;
    uint64_t n_captures;
    long n_overlapped; // launches that were allowed to start early
    uint64_t n_stores;
    uint64_t now_ns, ns_per_launch, bytes_per_us; // the simulated clock
    void (*each_kernel)(void * user);
    void * each_kernel_user;
    std::map<const void *, int> shared_limit; // of kernels, where it was raised
    std::deque<counter> counters;
    int n_failed, gemm_compute, skip_in;
    bool has_warp_groups; // kernels count as compiled for 9.0a
    long n_violations;
    std::string last_violation;
};

static thread_local int current_device = 0;
static thread_local cudaError_t last_error = cudaSuccess;
static thread_local CUctx_st * current_context = nullptr;              // NULL: none yet
static thread_local std::vector<CUctx_st *> * below_current = nullptr; // the stack of contexts without its top
static thread_local bool is_in_host_function = false;
static thread_local cudaStreamCaptureMode thread_capture_mode = cudaStreamCaptureModeGlobal;

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

static void configure_device(device & d, int index) {
    d.lost = cudaSuccess;
    d.primary.device = index;
    d.primary.is_primary = true;
    d.primary.is_active = false;
    memset(d.uuid.bytes, 0, sizeof(d.uuid.bytes));
    snprintf(d.uuid.bytes, sizeof(d.uuid.bytes), "simulated %d", index);
    memset(d.luid, 0, sizeof(d.luid));
    d.luid_mask = 0;
    d.pci[0] = d.pci[2] = 0;
    d.pci[1] = index + 1;
    d.attributes.clear();
    for (int i = 0; i < MAX_DEVICES; ++i) {
        d.peers[i] = false;
        d.peer_state[i] = i == index ? 0 : 1;
    }
}

static void configure(state & s, int n_devices, size_t memory_bytes, uint64_t seed) {
    s.n_devices = std::max(0, std::min<int>(n_devices, MAX_DEVICES));
    s.memory_bytes = memory_bytes;
    s.seed = seed;
    s.random = seed * 0x9E3779B97F4A7C15u + 0x632BE59BD9B4E019u;
    s.n_failed = 0;
    s.skip_in = 0;
    s.gemm_compute = 0;
    s.n_violations = 0;
    s.last_violation.clear();
    s.has_warp_groups = GCUDA_SIM_CC >= 900 && env_number("GCUDA_SIM_WARP_GROUPS", 0) != 0;
    s.counters.clear();
    s.now_ns = 0;
    s.ns_per_launch = 2000;
    s.bytes_per_us = 10000;
    s.each_kernel = nullptr;
    for (CUstream_st * q : s.all_streams) { q->time_ns = 0; }
    for (int i = 0; i < MAX_DEVICES; ++i) { configure_device(s.devices[(size_t) i], i); }
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

static void open_for(int device_index);

// Holds the lock; the last one to go closes device memory.
struct guard {
    explicit guard(std::recursive_mutex & lock) {
        lock.lock();
        the().n_held++;
    }
    ~guard() {
        if (the().n_held == 1) { open_for(-1); }
        the().n_held--;
        the().lock.unlock();
    }
    guard(const guard &) = delete;
};

static uint64_t random_u64(state & s) { // xorshift
    s.random ^= s.random << 13;
    s.random ^= s.random >> 7;
    s.random ^= s.random << 17;
    return s.random;
}
static unsigned random_below(state & s, size_t n) { return (unsigned) ((random_u64(s) >> 32) * n >> 32); }

static void violation(const char * text) {
    the().n_violations++;
    the().last_violation = text;
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
    void ** top = (void **) (f.stack + STACK_BYTES) - 1; // a return address, unused, aligned as after a call
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

static context main_context; // of the thread that runs a kernel
static context * came_from;  // the last one left
#if defined(SIM_TSAN)
// To ThreadSanitizer all threads of kernels are one. They run alternately, so it has nothing to find among them, and
// reporting a switch takes far longer than the switch.
static void *tsan_kernels, *tsan_caller;
#endif

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
#elif defined(SIM_TSAN)
    if (&from == &main_context) { __tsan_switch_to_fiber(tsan_kernels, 0); }
    if (&to == &main_context) { __tsan_switch_to_fiber(tsan_caller, 0); }
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

// A protected page below stops a stack that grows too deep.
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

struct async_copy { // of cp.async
    void * to;
    const void * from;
    int size;
};

struct block_of_cluster;
struct async_lane;
enum wait_kind { WAITS_NOT, WAITS_BARRIER, WAITS_WARP, WAITS_MBARRIER, WAITS_NAMED, WAITS_CLUSTER };

struct lane {
    uint3 index;
    int number; // in the block
    block_of_cluster * block;
    wait_kind waits;
    uint32_t waits_at, waits_parity; // the mbarrier, or the number of a named barrier
    async_lane * async;              // NULL: has never had any
    fiber * at;                      // where its stack is
    bool is_over, has_waited;        // for the kernels before
    int value;                       // of a barrier, then its result
    int from;                        // of a shuffle
    uint64_t in[2], out[2];
    const void * call_in; // of SIM_CALL
    void * call_out;
    std::vector<async_copy> copies; // not yet arrived, and where the groups of them end
    std::vector<size_t> groups;
};

struct meeting { // lanes of a warp at the same operation
    unsigned mask, here;
    sim_warp_op op;
    sim_warp_function function; // of SIM_CALL
};

struct named_barrier {
    int n_wanted, n_here;
    std::vector<lane *> waiting;
};

struct mbarrier {
    uint64_t n_phases; // over
    int n_arrivals, n_pending;
    int64_t n_bytes; // expected and not yet landed
    bool is_fenced;  // since it was initialised
    std::vector<lane *> waiting;
};

struct async_view {             // shared memory as the copy engine and wgmma see it
    std::vector<char> bytes;    // when they last looked; empty: the block has not used them
    std::vector<uint32_t> seen; // of each 16 bytes, when that was
    uint32_t now, fence;        // fence: the last one of any thread
};

struct block_of_cluster { // of 1, as a rule
    uint3 index;
    int rank, n_started, n_over;
    lane * lanes;
    char * shared; // static, then dynamic
    size_t dynamic_at, shared_bytes;
    std::vector<std::pair<const void *, uint32_t>> statics;
    uint32_t n_static;
    int barrier_what, n_at_barrier;
    long n_nonzero;
    named_barrier named[16];
    // threads that have set their registers; registers beyond those of the launch that they have then
    int n_set, n_extra;
    std::map<uint32_t, mbarrier> mbarriers;
    async_view view;
    std::vector<uint64_t> issued[(MAX_THREADS + 127) / 128]; // by the warpgroups: what they multiply
    size_t n_issued[MAX_THREADS / 32];                       // by the warps
};

struct flight;
struct block_state {
    const void * kernel;
    const std::function<void()> * thread;
    int n, n_threads, n_started, n_over; // threads of the cluster, of a block
    unsigned factor, offset;             // of a block, thread i to start is number (factor * i + offset) % n_threads
    bool is_mixed, failed, must_wait;
    lane lanes[MAX_CLUSTER * MAX_THREADS];
    std::vector<meeting> meetings[MAX_CLUSTER * MAX_THREADS / 32];
    lane * ready[MAX_CLUSTER * MAX_THREADS]; // a ring
    unsigned ready_head, n_ready;
    block_of_cluster blocks[MAX_CLUSTER], *by_rank[MAX_CLUSTER];
    int n_blocks, n_at_cluster_barrier, launch_cluster;
    size_t dynamic_bytes;
    std::vector<flight> flights; // of copies
    std::vector<fiber *> all, idle;
    fiber * running;
    lane * here;
    cudaError_t error;         // of a block that failed
    std::atomic<long> runs_on; // the system's number of the thread that runs a block, or 0
};
static block_state & b = *new block_state(); // never destroyed, as the state

enum { MAX_READY = MAX_CLUSTER * MAX_THREADS };
static void push_ready(lane * l) { b.ready[(b.ready_head + b.n_ready++) % MAX_READY] = l; }

static lane * pop_ready() {
    const unsigned head = b.ready_head % MAX_READY;
    if (b.is_mixed) { std::swap(b.ready[head], b.ready[(b.ready_head + random_below(the(), b.n_ready)) % MAX_READY]); }
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

static bool make_shared(block_of_cluster & block);
static void begin_block_of_cluster(block_of_cluster & block, uint3 index, int rank);
static bool land_one();
static void check_end_of_thread();

// Copies land when no thread can continue otherwise.
static bool is_anyone_ready() {
    while (b.n_ready == 0 && !b.failed && land_one()) {}
    return b.n_ready > 0 && !b.failed;
}

// Next thread when the running one cannot continue: one that has not begun, one that is ready, or none.
static context & next_context() {
    if (b.failed) { return main_context; }
    if (b.n_started < b.n) { return take_idle()->c; }
    return is_anyone_ready() ? pop_ready()->at->c : main_context;
}

static void start_thread() {
    block_of_cluster * block = &b.blocks[b.n_blocks > 1 && b.is_mixed ? random_below(the(), (size_t) b.n_blocks) : 0];
    while (block->n_started == b.n_threads) { block = block + 1 == b.blocks + b.n_blocks ? b.blocks : block + 1; }
    lane & l = block->lanes[(b.factor * (unsigned) block->n_started + b.offset) % (unsigned) b.n_threads];
    block->n_started++;
    b.n_started++;
    b.here = &l;
    threadIdx = l.index;
    blockIdx = block->index;
    (*b.thread)();
    check_end_of_thread();
    l.is_over = true;
    block->n_over++;
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
        context & to = is_anyone_ready() ? pop_ready()->at->c : main_context;
        switch_to(self->c, to);
    }
}

static void wait_here(wait_kind what) {
    lane * me = b.here;
    fiber * f = me->at = b.running;
    me->waits = what;
    context & to = next_context();
    if (&to != &f->c) { switch_to(f->c, to); } // else a copy has landed that it waited for
    me->waits = WAITS_NOT;
    b.running = f;
    b.here = me;
    threadIdx = me->index;
    blockIdx = me->block->index;
}

static void fail_block(const char * text) {
    violation(text);
    b.failed = true;
    wait_here(WAITS_NOT); // for ever
}

int sim_barrier(int what, int value) {
    lane * me = b.here;
    block_of_cluster & block = *me->block;
    if (block.n_at_barrier > 0 && block.barrier_what != what) {
        fail_block("threads of a block are at different kinds of barriers");
    }
    block.barrier_what = what;
    block.n_nonzero += value != 0;
    me->from = -1; // waits at a barrier
    if (++block.n_at_barrier < b.n_threads) {
        wait_here(WAITS_BARRIER);
        return me->value;
    }
    const long n = block.n_nonzero;
    const int result = what == 1 ? (int) n : what == 2 ? n == b.n_threads : n > 0;
    block.n_at_barrier = 0;
    block.n_nonzero = 0;
    for (int i = 0; i < b.n_threads; ++i) {
        block.lanes[i].value = result;
        if (&block.lanes[i] != me) { push_ready(&block.lanes[i]); }
    }
    return result;
}

void sim_wait_before() { b.here->has_waited = true; }

long long clock64() {
    static long long n;
    return n += 100;
}

int sim_lane() { return b.here->number % 32; }
void * sim_dynamic_shared() { return b.here->block->shared + b.here->block->dynamic_at; }

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
    if (m.op == SIM_CALL) {
        const void * in[32];
        void * out[32];
        for (int i = 0; i < 32; ++i) { in[i] = warp[i].call_in, out[i] = warp[i].call_out; }
        m.function(in, out);
    }
    for (int i = 0; i < 32 && m.op > SIM_SHUFFLE && m.op < SIM_MATCH; ++i) {
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
        for (int k = 0; k < 32 && m.op == SIM_MATCH; ++k) {
            const bool is_same = (m.mask >> k & 1u) != 0 && warp[k].in[0] == l.in[0];
            l.out[0] = (k == 0 ? 0 : l.out[0]) | (uint64_t) is_same << k;
        }
        if (&l != b.here) { push_ready(&l); }
    }
}

static void sim_meet(
    sim_warp_op op, unsigned mask, const void * in, void * out, size_t size, int from, sim_warp_function function) {
    lane * me = b.here;
    const int warp = (int) (me - b.lanes) / 32;
    const unsigned bit = 1u << (me->number % 32);
    std::vector<meeting> & meetings = b.meetings[warp];
    size_t k = 0;
    while (k < meetings.size() && meetings[k].mask != mask) { ++k; }
    if (k == meetings.size()) { meetings.push_back(meeting{ mask, 0, op, function }); }
    if ((mask & bit) == 0) { fail_block("a lane is not in its own mask"); }
    if (meetings[k].op != op || meetings[k].function != function) {
        fail_block("lanes of a warp are at different warp operations");
    }
    memcpy(me->in, in ? in : me->in, size);
    me->from = from;
    meetings[k].here |= bit;
    if (meetings[k].here == mask) {
        const meeting m = meetings[k];
        meetings.erase(meetings.begin() + (long) k);
        meet(m, &b.lanes[32 * warp]);
    } else {
        wait_here(WAITS_WARP);
    }
    if (out != nullptr) { memcpy(out, me->out, size); }
}

void sim_warp(sim_warp_op op, unsigned mask, const void * in, void * out, size_t size, int from) {
    sim_meet(op, mask, in, out, size, from, nullptr);
}

void sim_warp_all(sim_warp_function function, const void * in, void * out) {
    b.here->call_in = in;
    b.here->call_out = out;
    sim_meet(SIM_CALL, 0xffffffffu, nullptr, nullptr, 0, 0, function);
}

void sim_cp_async_16(void * shared, const void * global, int size_bytes) {
    if ((uintptr_t) shared % 16 != 0 || (uintptr_t) global % 16 != 0 || size_bytes < 0 || size_bytes > 16) {
        fail_block("cp.async with an address or a size that is not aligned to 16 bytes");
    }
    memset(shared, 0xEE, 16);
    b.here->copies.push_back(async_copy{ shared, global, size_bytes });
}

void sim_cp_async_commit() { b.here->groups.push_back(b.here->copies.size()); }

static void land_copies_of(const lane * l);

void sim_cp_async_wait(int n_pending) {
    lane & l = *b.here;
    land_copies_of(&l);
    if ((size_t) n_pending >= l.groups.size()) { return; }
    const size_t n_groups = l.groups.size() - (size_t) n_pending, n = l.groups[n_groups - 1];
    for (size_t i = 0; i < n; ++i) {
        const async_copy & c = l.copies[i];
        memset(c.to, 0, 16);
        memcpy(c.to, c.from, (size_t) c.size);
    }
    l.copies.erase(l.copies.begin(), l.copies.begin() + (long) n);
    l.groups.erase(l.groups.begin(), l.groups.begin() + (long) n_groups);
    for (size_t & end : l.groups) { end -= n; }
}

// =====================================================================================================
// >>mma   products of a warp: sim_mma.h
// =====================================================================================================

typedef double sim_pair __attribute__((vector_size(16)));

template <typename D, int K> struct sim_mma { // A is 16 x K, B is K x 8
    double a[16][K];
    union {
        double b[K][8];
        sim_pair b_pairs[K][4];
    };
    void put(void * const * out, const void * const * in, size_t c_offset) const {
        union {
            double sums[16][8];
            sim_pair pairs[16][4];
        };
        for (int row = 0; row < 16; ++row) { // eight sums in parallel, each in the order of k
            sim_pair s0 = {}, s1 = {}, s2 = {}, s3 = {};
            for (int k = 0; k < K; ++k) {
                s0 += a[row][k] * b_pairs[k][0];
                s1 += a[row][k] * b_pairs[k][1];
                s2 += a[row][k] * b_pairs[k][2];
                s3 += a[row][k] * b_pairs[k][3];
            }
            pairs[row][0] = s0, pairs[row][1] = s1, pairs[row][2] = s2, pairs[row][3] = s3;
        }
        for (int lane = 0; lane < 32; ++lane) {
            for (int i = 0; i < 4; ++i) {
                const double sum = sums[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
                D c;
                memcpy(&c, (const char *) in[lane] + c_offset + (size_t) i * sizeof(D), sizeof(c));
                c = std::is_integral<D>::value ? (D) ((int64_t) c + (int64_t) sum) : (D) ((double) c + sum);
                memcpy((char *) out[lane] + (size_t) i * sizeof(D), &c, sizeof(c));
            }
        }
    }
};

static double sim_mma_half(unsigned bits) { return (double) __half2float(__ushort_as_half((unsigned short) bits)); }
static double sim_mma_bfloat16(unsigned bits) { return (double) __uint_as_float(bits << 16); }
static double sim_mma_tf32(unsigned bits) { return (double) __uint_as_float(bits & 0xffffe000u); }

// Elements of 16 bits, two per register. Register i of A: row g + 8 (i % 2), columns 2 t + 8 (i / 2) and the next.
// Register i of B: rows 2 t + 8 i and the next, column g.
template <double (*LOAD)(unsigned)> static void sim_mma_m16n8k16(const void * const * in, void * const * out) {
    sim_mma<float, 16> m;
    for (int lane = 0; lane < 32; ++lane) {
        const sim_mma_in<float> * x = (const sim_mma_in<float> *) in[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 8; ++i) {
            m.a[g + 8 * (i / 2 % 2)][2 * t + 8 * (i / 4) + i % 2] = LOAD(x->a[i / 2] >> (16 * (i % 2)) & 0xffffu);
        }
        for (int i = 0; i < 4; ++i) {
            m.b[2 * t + 8 * (i / 2) + i % 2][g] = LOAD(x->b[i / 2] >> (16 * (i % 2)) & 0xffffu);
        }
    }
    m.put(out, in, offsetof(sim_mma_in<float>, c));
}

void sim_mma_m16n8k16_half(const void * const * in, void * const * out) { sim_mma_m16n8k16<sim_mma_half>(in, out); }
void sim_mma_m16n8k16_bfloat16(const void * const * in, void * const * out) {
    sim_mma_m16n8k16<sim_mma_bfloat16>(in, out);
}

// Register i of A holds row g + 8 (i % 2), column t + 4 (i / 2); register i of B row t + 4 i, column g.
void sim_mma_m16n8k8(const void * const * in, void * const * out) {
    sim_mma<float, 8> m;
    for (int lane = 0; lane < 32; ++lane) {
        const sim_mma_in<float> * x = (const sim_mma_in<float> *) in[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; ++i) { m.a[g + 8 * (i % 2)][t + 4 * (i / 2)] = sim_mma_tf32(x->a[i]); }
        for (int i = 0; i < 2; ++i) { m.b[t + 4 * i][g] = sim_mma_tf32(x->b[i]); }
    }
    m.put(out, in, offsetof(sim_mma_in<float>, c));
}

// Bytes, four per register. Register i of A: row g + 8 (i % 2), columns 4 t + 16 (i / 2) and the next three. Register i
// of B: rows 4 t + 16 i and the next three, column g.
void sim_mma_m16n8k32(const void * const * in, void * const * out) {
    sim_mma<int, 32> m;
    for (int lane = 0; lane < 32; ++lane) {
        const sim_mma_in<int> * x = (const sim_mma_in<int> *) in[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 16; ++i) {
            m.a[g + 8 * (i / 4 % 2)][4 * t + 16 * (i / 8) + i % 4] = (int8_t) (x->a[i / 4] >> (8 * (i % 4)));
        }
        for (int i = 0; i < 8; ++i) { m.b[4 * t + 16 * (i / 4) + i % 4][g] = (int8_t) (x->b[i / 4] >> (8 * (i % 4))); }
    }
    m.put(out, in, offsetof(sim_mma_in<int>, c));
}

#include "sim-sm90.h"

// =====================================================================================================
// >>regions   addresses of device memory: closed to the host, open to kernels of the right device
//
// A device's memory is a file in memory (memfd) that is mapped twice. One mapping, at the address that pointers have,
// has no access rights. The other ("alias") is always accessible, for the simulator's own copies. Before a kernel runs,
// the memory that its device may use is opened; before control returns to the caller it is closed. This is done by a
// protection key of the processor, or else by mprotect, which is slow for each page. A forbidden access of a kernel
// ends the kernel; one of the host is reported and allowed.
// =====================================================================================================

static const size_t ARENA_BYTES = (size_t) 64 << 30; // addresses, not memory
enum { RED_BYTES = 256, GRAIN = 256 };               // least number of unusable bytes after each allocation
// of an arena, whose pages are kept: the system clears others again and again
static const size_t KEPT_BYTES = (size_t) 128 << 20;
static const size_t PAGE_BYTES = 2 << 20; // of virtual memory management

static void * map_memory(void * at, size_t size, int rights, int fd) {
    const int flags = (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_NORESERVE | (at ? MAP_FIXED : 0);
    void * p = (void *) syscall(SYS_mmap, at, size, rights, flags, fd, 0); // past ThreadSanitizer, which clears shadows
    return p == MAP_FAILED ? nullptr : p;
}

static void poison(const void * p, size_t size, bool is_usable) {
#if defined(SIM_ASAN)
    if (is_usable) {
        __asan_unpoison_memory_region(p, size);
    } else {
        __asan_poison_memory_region(p, size);
    }
#else
    (void) p;
    (void) size;
    (void) is_usable;
#endif
}

static void watch_faults();

static void set_rights(uintptr_t from, size_t size, int rights) {
    const uintptr_t page = from / 4096 * 4096;
    if (size > 0) { (void) mprotect((void *) page, size + (from - page), rights); }
}

static int arena_with(uintptr_t address);

// A page that the host was let at is everybody's until the next call.
static void set_stray(uintptr_t page, bool is_open) {
    const int device = arena_with(page), key = device >= 0 ? the().devices[(size_t) device].memory.key : 0;
    if (key > 0) {
        (void) pkey_mprotect((void *) page, 4096, PROT_READ | PROT_WRITE, is_open ? 0 : key);
    } else {
        set_rights(page, 4096, is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
}

// Opens the memory that kernels of a device may use. -1: none. The thread that opens it holds the lock until all is
// closed: keys belong to threads.
static void open_for(int device_index) {
    state & s = the();
    for (uintptr_t page : s.stray_pages) { set_stray(page, false); }
    s.stray_pages.clear();
    if (s.open_for == device_index) { return; }
    const int before = s.open_for;
    s.open_for = device_index;
    for (int i = 0; i < MAX_DEVICES; ++i) {
        arena & a = s.devices[(size_t) i].memory;
        const bool can = device_index >= 0 && (i == device_index || s.devices[(size_t) device_index].peers[i]);
        if (a.key > 0) {
            if (can != a.is_open) { (void) pkey_set(a.key, can ? 0 : PKEY_DISABLE_ACCESS); }
        } else if (a.at != 0 && (can || a.is_open)) {
            set_rights(a.at, a.n_used, can ? PROT_READ | PROT_WRITE : PROT_NONE);
        }
        a.is_open = can;
    }
    if (s.n_mapped == 0) { return; }
    for (const auto & m : s.memories) {
        if (m.second.kind != MAPPED && m.second.kind != EXTERNAL) { continue; }
        const int was = before >= 0 ? m.second.rights[before] : 0,
                  is = device_index >= 0 ? m.second.rights[device_index] : 0;
        if (was != is) { set_rights(m.first, m.second.size, is); }
    }
}

static bool make_arena(arena & a) {
    if (a.at != 0) { return true; }
    const int fd = memfd_create("simulated device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t) ARENA_BYTES) != 0) { return false; }
    void * p = map_memory(nullptr, ARENA_BYTES, PROT_NONE, fd);
    a.alias = (char *) map_memory(nullptr, ARENA_BYTES, PROT_READ | PROT_WRITE, fd);
    close(fd);
    a.at = (uintptr_t) p;
    a.key = pkey_alloc(0, PKEY_DISABLE_ACCESS); // below 0: there is none
    watch_faults();
    return p != nullptr && a.alias != nullptr;
}

// The first free range of that size at or after the cursor; addresses are reused late.
static bool find_place(arena & a, size_t size, size_t limit, size_t * place) {
    size_t at = a.cursor;
    for (auto it = a.blocks.lower_bound(at); at + size <= limit; ++it) {
        if (it != a.blocks.begin()) {
            const auto before = std::prev(it);
            at = std::max(at, before->first + before->second);
        }
        if (it == a.blocks.end() || at + size <= it->first) { break; }
        at = it->first + it->second;
    }
    *place = at;
    return at + size <= limit;
}

static char * arena_alloc(arena & a, size_t size, size_t n_live) {
    if (!make_arena(a)) { return nullptr; }
    const size_t block = (size + RED_BYTES + GRAIN - 1) / GRAIN * GRAIN;
    const size_t limit = std::max<size_t>((size_t) 16 << 20, 2 * (n_live + block));
    size_t place = 0;
    if (!find_place(a, block, std::max(limit, a.n_used), &place)) {
        a.cursor = GRAIN;
        if (!find_place(a, block, ARENA_BYTES, &place)) { return nullptr; }
    }
    a.blocks[place] = block;
    a.cursor = place + block;
    const size_t end = (place + block + 4095) / 4096 * 4096;
    if (end > a.n_used) {
        poison((void *) (a.at + a.n_used), end - a.n_used, false);
        if (a.key > 0) {
            (void) pkey_mprotect((void *) (a.at + a.n_used), end - a.n_used, PROT_READ | PROT_WRITE, a.key);
        }
        a.n_used = end;
    }
    if (place + block > KEPT_BYTES) {
        memset(a.alias + place, 0xFF, size);
        a.n_filled = std::min(a.n_filled, place); // nothing is allocated between this block and the end of what is kept
    } else if (place + block > a.n_filled) {
        memset(a.alias + a.n_filled, 0xFF, place + block - a.n_filled);
        a.n_filled = place + block;
    }
    memset(a.alias + place + size, 0xA5, block - size); // seen to when freed
    poison((void *) (a.at + place), size, true);
    return (char *) a.at + place;
}

static void arena_free(arena & a, uintptr_t p, size_t size) {
    const size_t place = p - a.at, block = a.blocks[place];
    for (size_t i = size; i < block; ++i) {
        if (a.alias[place + i] == (char) 0xA5) { continue; }
        char text[160];
        snprintf(text, sizeof(text), "byte %zu behind device memory of %zu bytes at %p was written", i - size, size,
            (void *) p);
        violation(text);
        break;
    }
    a.blocks.erase(place);
    poison((void *) p, size, false);
    const size_t from = (place + 4095) / 4096 * 4096, to = (place + block) / 4096 * 4096;
    if (place + block <= KEPT_BYTES) {
        memset(a.alias + place, 0xFF, block);
    } else if (to > from + 65536) {
        (void) madvise(a.alias + from, to - from, MADV_REMOVE);
    }
    // for mprotect to pass over
    if (a.key <= 0 && to > from) { (void) madvise((void *) (a.at + from), to - from, MADV_DONTNEED); }
}

static bool is_device_kind(memory_kind k) { return k == ON_DEVICE || k == MAPPED || k == EXTERNAL; }

// The allocation or mapping with this byte, or NULL.
static const memory * memory_at(const void * ptr, uintptr_t * base = nullptr) {
    state & s = the();
    auto it = s.memories.upper_bound((uintptr_t) ptr);
    if (it == s.memories.begin()) { return nullptr; }
    --it;
    if (base != nullptr) { *base = it->first; }
    return (uintptr_t) ptr - it->first < it->second.size ? &it->second : nullptr;
}

static bool is_usable(const memory & m) {
    for (int rights : m.rights) {
        if (rights != 0) { return true; }
    }
    return m.kind != MAPPED;
}

// The allocation that holds all these bytes (or the first of several mappings that do), or NULL.
static const memory * memory_of(const void * ptr, size_t size, bool on_device) {
    uintptr_t base = 0;
    const memory * first = memory_at(ptr, &base);
    if (first == nullptr && size == 0) { // may point past the end
        first = memory_at((const void *) ((uintptr_t) ptr - 1), &base);
    }
    if (first == nullptr || is_device_kind(first->kind) != on_device || !is_usable(*first)) { return nullptr; }
    const size_t n_here = base + first->size - (uintptr_t) ptr;
    if (size <= n_here) { return first; }
    const bool goes_on =
        first->kind == MAPPED && memory_of((const char *) ptr + n_here, size - n_here, on_device) != nullptr;
    return goes_on ? first : nullptr;
}

// Where the simulator itself may read and write these bytes, and how many of them lie there in one piece.
static char * alias_of(const void * ptr, size_t * n) {
    uintptr_t base = 0;
    const memory * m = memory_at(ptr, &base);
    if (m == nullptr || !is_device_kind(m->kind)) { return (char *) ptr; }
    *n = std::min(*n, base + m->size - (uintptr_t) ptr);
    return m->alias + ((uintptr_t) ptr - base);
}

static void copy_bytes(void * dst, const void * src, size_t size) {
    while (size > 0) {
        size_t n = size;
        char * to = alias_of(dst, &n);
        const char * from = alias_of(src, &n);
        memmove(to, from, n);
        dst = (char *) dst + n;
        src = (const char *) src + n;
        size -= n;
    }
}

static void set_bytes(void * dst, int value, size_t size) {
    while (size > 0) {
        size_t n = size;
        char * to = alias_of(dst, &n);
        memset(to, value, n);
        dst = (char *) dst + n;
        size -= n;
    }
}

static int arena_with(uintptr_t address) { // a device, or -1
    for (int i = 0; i < MAX_DEVICES; ++i) {
        const arena & a = the().devices[(size_t) i].memory;
        if (a.at != 0 && address >= a.at && address - a.at < ARENA_BYTES) { return i; }
    }
    return -1;
}

static bool is_arena_address(uintptr_t address) { return arena_with(address) >= 0; }

static void describe(uintptr_t address, char * text, size_t size) {
    state & s = the();
    uintptr_t base = 0;
    const memory * m = memory_at((const void *) address, &base);
    if (m != nullptr && is_device_kind(m->kind)) {
        snprintf(text, size, "byte %zu of %zu of %smemory of device %d", address - base, m->size,
            m->kind == MAPPED     ? "mapped "
            : m->kind == EXTERNAL ? "external "
                                  : "",
            m->device);
        return;
    }
    if (is_arena_address(address)) {
        snprintf(text, size, "device %d, where nothing is allocated", arena_with(address));
        return;
    }
    auto it = s.ranges.upper_bound(address);
    if (it != s.ranges.begin() && address - std::prev(it)->first < std::prev(it)->second) {
        snprintf(text, size, "a reserved range of addresses, where nothing is mapped");
        return;
    }
    text[0] = '\0';
}

static char kernel_fault[300]; // what a kernel did

static void end_faulty_kernel() {
    b.error = cudaErrorIllegalAddress;
    fail_block(kernel_fault); // does not come back
}

// Goes on in end_faulty_kernel, on the kernel's stack, once the handler has returned.
static void leave_kernel(uintptr_t address, void * signal_context) {
    char what[200];
    describe(address, what, sizeof(what));
    snprintf(kernel_fault, sizeof(kernel_fault), "a kernel of device %d uses %p: %s", the().open_for, (void *) address,
        what[0] != '\0' ? what : "no device memory");
#if defined(__x86_64__)
    greg_t * registers = ((ucontext_t *) signal_context)->uc_mcontext.gregs;
    registers[REG_RSP] = ((registers[REG_RSP] - 128) & ~(greg_t) 15) - 8; // below the red zone, as after a call
    registers[REG_RIP] = (greg_t) end_faulty_kernel;
#else
    (void) signal_context;
    end_faulty_kernel(); // SA_NODEFER: the signal is not blocked
#endif
}

// Reports a forbidden access of the host. True: to device memory, so that it may go through.
static bool report_fault(uintptr_t address) {
    char what[200], text[300];
    const guard held(the().lock);
    describe(address, what, sizeof(what));
    if (what[0] == '\0') { return false; } // not ours
    snprintf(text, sizeof(text), "the host uses %p: %s", (void *) address, what);
    violation(text);
    return memory_at((const void *) address) != nullptr;
}

static void on_fault(int signal_number, siginfo_t * info, void * signal_context) {
    const uintptr_t address = (uintptr_t) info->si_addr;
    if (b.runs_on == syscall(SYS_gettid)) { return leave_kernel(address, signal_context); } // it has the lock
    if (!report_fault(address)) {
        signal(signal_number, SIG_DFL);
        return;
    }
    set_stray(address / 4096 * 4096, true);
    the().stray_pages.push_back(address / 4096 * 4096);
}

static void watch_faults() {
    static bool is_watched;
    if (is_watched) { return; }
    is_watched = true;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
}

// =====================================================================================================
// >>grid   the blocks of a kernel, one after another
// =====================================================================================================

static bool make_shared(block_of_cluster & block) {
    const size_t dynamic_bytes = b.dynamic_bytes > 0 ? std::max<size_t>(b.dynamic_bytes, 256) : 0;
    void * p = nullptr;
    // aligned to 128 bytes and to no more; blocks of a cluster have the same addresses
    block.dynamic_at =
        &block != b.blocks ? b.blocks[0].dynamic_at : STATIC_BYTES + 128 * (b.is_mixed ? random_below(the(), 8) : 0);
    block.shared_bytes = block.dynamic_at + dynamic_bytes;
    if (posix_memalign(&p, 1024, block.shared_bytes) != 0) { return false; }
    block.shared = (char *) p;
    return true;
}

static void begin_block_of_cluster(block_of_cluster & block, uint3 index, int rank) {
    const int n_before = (int) (&block - b.blocks) * b.n_threads;
    block.index = index;
    block.rank = rank;
    block.n_started = block.n_over = block.n_at_barrier = 0;
    block.n_nonzero = 0;
    block.lanes = b.lanes + n_before;
    block.n_static = 0;
    block.statics.clear();
    block.mbarriers.clear();
    block.view.bytes.clear();
    for (named_barrier & n : block.named) {
        n.n_wanted = n.n_here = 0;
        n.waiting.clear();
    }
    block.n_set = block.n_extra = 0;
    for (std::vector<uint64_t> & i : block.issued) { i.clear(); }
    memset(block.n_issued, 0, sizeof(block.n_issued));
    for (int i = 0; i < b.n_threads; ++i) {
        lane & l = block.lanes[i];
        const unsigned u = (unsigned) i;
        l.number = i;
        l.index = uint3{ u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y };
        l.block = &block;
        l.is_over = l.has_waited = false;
        l.waits = WAITS_NOT;
        l.copies.clear();
        l.groups.clear();
        if (l.async != nullptr) { forget(*l.async); }
    }
    memset(block.shared, 0xEE, block.shared_bytes); // not cleared between blocks either
}

static void begin_block(uint3 index) {
    state & s = the();
    static const unsigned factors[] = { 1, 1, 5, 7, 11, 13, 29, 31 };
    b.n = b.n_threads;
    b.factor = b.is_mixed ? factors[random_below(s, 8)] : 1;
    while (std::__gcd(b.factor, (unsigned) b.n) != 1) { b.factor++; }
    b.offset = b.is_mixed ? random_below(s, (size_t) b.n) : 0;
    b.n_started = b.n_over = b.n_at_cluster_barrier = 0;
    b.ready_head = b.n_ready = 0;
    b.failed = false;
    b.error = cudaErrorLaunchFailure;
    b.n_blocks = 1;
    b.by_rank[0] = &b.blocks[0];
    b.flights.clear();
    begin_block_of_cluster(b.blocks[0], index, 0);
}

// Threads that wait forever are dropped with their stacks.
static void give_up() {
    for (std::vector<meeting> & m : b.meetings) { m.clear(); }
    b.idle = b.all;
    for (fiber * f : b.all) { fiber_prepare(*f); }
#if defined(SIM_TSAN)
    __tsan_destroy_fiber(tsan_kernels); // with the calls that have not returned
    tsan_kernels = nullptr;
#endif
}

// In a kernel that may start while the previous one runs, every thread must have called it.
static bool has_waited(uint3 index) {
    int n = 0;
    for (int i = 0; i < b.n; ++i) { n += b.lanes[i].has_waited; }
    if (!b.must_wait || n == b.n) { return true; }
    char text[160];
    snprintf(text, sizeof(text), "block %u of an overlapped launch: %d of %d threads wait for the kernel before",
        index.x, n, b.n);
    violation(text);
    return false;
}

static bool is_all_over() {
    for (int i = 0; i < b.n_blocks; ++i) {
        const std::string left = what_is_left(b.blocks[i]);
        if (!left.empty()) {
            violation(left.c_str());
            return false;
        }
    }
    return true;
}

static bool run_block(uint3 index) {
    begin_block(index);
#if defined(SIM_TSAN)
    tsan_caller = __tsan_get_current_fiber();
    if (tsan_kernels == nullptr) { tsan_kernels = __tsan_create_fiber(0); }
#endif
    b.runs_on = syscall(SYS_gettid);
    switch_to(main_context, take_idle()->c);
    b.runs_on = 0;
    if (b.n_over == b.n && !b.failed) { return has_waited(index) && is_all_over(); }
    if (!b.failed) { violation(what_all_wait_for().c_str()); }
    give_up();
    return false;
}

static cudaError_t run_grid(int device_index, const launch_of_kernel & l) {
    state & s = the();
    if (s.each_kernel != nullptr) { s.each_kernel(s.each_kernel_user); }
    open_for(device_index);
    const dim3 & grid = l.grid;
    const uint64_t n = (uint64_t) grid.x * grid.y * grid.z, first = s.seed != 0 ? random_below(s, n) : 0;
    gridDim = grid;
    blockDim = l.block;
    b.kernel = l.kernel;
    b.thread = &l.arguments.thread;
    b.must_wait = l.is_overlapped;
    b.launch_cluster = l.cluster;
    b.is_mixed = s.seed != 0;
    b.n_threads = (int) (l.block.x * l.block.y * l.block.z);
    b.dynamic_bytes = l.shared_bytes;
    if (!make_shared(b.blocks[0])) { return cudaErrorLaunchOutOfResources; }
    std::vector<bool> has_run(n, false); // as a block of another's cluster
    bool ok = true;
    for (uint64_t i = 0; i < n && ok; ++i) {
        const uint64_t k = (first + i) % n;
        if (has_run[k]) { continue; }
        ok = run_block(
            uint3{ (unsigned) (k % grid.x), (unsigned) (k / grid.x % grid.y), (unsigned) (k / grid.x / grid.y) });
        for (int c = 0; c < b.n_blocks; ++c) { has_run[k / grid.x * grid.x + b.blocks[c].index.x] = true; }
    }
    for (block_of_cluster & block : b.blocks) {
        free(block.shared);
        block.shared = nullptr;
    }
    return ok ? cudaSuccess : b.error;
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
    return (!o.wait || o.wait->done) && in_the_way(q) == nullptr && (!o.ready || o.ready());
}

// A stream whose first operation brings this one nearer.
static CUstream_st * towards(CUstream_st * q) {
    const operation & o = q->queue.front();
    if (o.wait && !o.wait->done) { return towards(o.wait->stream); }
    CUstream_st * other = in_the_way(q);
    return other ? towards(other) : q;
}

// A stream waits for what another interface has to do: others get the lock meanwhile, for some seconds.
static bool wait_for_others(const operation & o) {
    state & s = the();
    const std::function<bool()> ready = o.ready;
    open_for(-1);
    for (int i = 0; i < 3000 && !ready(); ++i) {
        const int n = s.n_held;
        s.n_held = 0;
        for (int k = 0; k < n; ++k) { s.lock.unlock(); }
        usleep(1000);
        for (int k = 0; k < n; ++k) { s.lock.lock(); }
        s.n_held = n;
    }
    return ready();
}

static void run_launch(int device_index, const launch_of_kernel & l);

static void run_first(CUstream_st * q) {
    if (q->queue.front().ready && !q->queue.front().ready() && !wait_for_others(q->queue.front())) {
        violation("a stream waits for a semaphore that nobody signals");
        lose_device(q->device, cudaErrorLaunchTimeout);
        return;
    }
    const operation o = std::move(q->queue.front());
    q->queue.pop_front();
    const uint64_t cost_ns = o.launch ? the().ns_per_launch : o.cost_ns;
    const uint64_t start = std::max({ q->time_ns, o.queued_ns, o.wait ? o.wait->time_ns : 0 });
    q->time_ns = start + cost_ns;
    if (o.mark) { o.mark->time_ns = q->time_ns; }
    if (o.launch) { run_launch(q->device, *o.launch); }
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

// A stream that was destroyed is gone with its last operation.
static bool is_stream(const state & s, const CUstream_st * q) {
    return std::find(s.all_streams.begin(), s.all_streams.end(), q) != s.all_streams.end();
}

// Runs until the operations of the stream up to that number are done; how much else runs meanwhile differs.
static void run_until(state & s, CUstream_st * q, uint64_t number) {
    const unsigned others = random_below(s, 4);
    while (is_stream(s, q) && !q->queue.empty() && q->queue.front().number <= number) {
        s.now_ns = std::max(s.now_ns, q->time_ns);
        if (random_below(s, 4) >= others || !run_any(s)) {
            if (!q->queue.empty()) { run_first(towards(q)); }
        }
    }
    if (is_stream(s, q)) { s.now_ns = std::max(s.now_ns, q->time_ns); }
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

static void capture_node(CUstream_st * q, operation o) {
    CUgraph_st & g = *q->capturing->graph;
    g.nodes.emplace_back(new CUgraphNode_st{ std::move(o), q->device, q->heads });
    q->heads.assign(1, g.nodes.back().get());
}

static void enqueue(CUstream_st * q, operation o) {
    state & s = the();
    if (q->capturing != nullptr) { return capture_node(q, std::move(o)); }
    o.number = ++s.n_operations;
    o.queued_ns = s.now_ns;
    q->queue.push_back(std::move(o));
    now_and_then(s);
}

static uint64_t copy_ns(size_t size) { return 1000 + size * 1000 / the().bytes_per_us; }

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

// Functions of which a call has failed as told, since the process began.
static std::set<std::string> & faults_seen() {
    static std::set<std::string> * names = new std::set<std::string>();
    return *names;
}

// Counts a call. Returns the error that a test injected.
static cudaError_t injected(const char * name) {
    counter & c = counter_of(name);
    c.calls++;
    if (c.fail_in == 0 || --c.fail_in > 0) { return cudaSuccess; }
    the().n_failed++;
    faults_seen().insert(name);
    return c.error;
}

static CUctx_st * primary_of(int device_index) { return &the().devices[(size_t) device_index].primary; }

// Most calls make a context current if there is none: the primary one of the current device.
static cudaError_t need_context() {
    if (current_context == nullptr) { current_context = primary_of(current_device); }
    if (!current_context->is_primary && the().contexts.count(current_context) == 0) {
        violation("the current context was destroyed");
        return cudaErrorContextIsDestroyed;
    }
    current_context->is_active = true;
    return cudaSuccess;
}

// Calls that capture does not allow, depending on its mode and the thread: what may allocate, free or wait.
static bool is_unsafe_call(const char * name) {
    static const char * const names[] = { "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost", "cudaHostRegister",
        "cudaHostUnregister", "cudaDeviceSynchronize", "cudaEventQuery", "cudaEventSynchronize", "cudaStreamQuery",
        "cudaStreamSynchronize", "cudaMemGetInfo", "cublasCreate_v2", "cublasDestroy_v2" };
    for (const char * unsafe : names) {
        if (strcmp(name, unsafe) == 0) { return true; }
    }
    return false;
}

// Invalidates the captures that such a call runs into.
static bool capture_forbids(const char * name) {
    bool forbids = false;
    if (the().captures.empty() || thread_capture_mode == cudaStreamCaptureModeRelaxed || !is_unsafe_call(name)) {
        return false;
    }
    for (capture * c : the().captures) {
        const bool is_mine = c->thread == thread_number();
        const bool minds =
            is_mine ? c->mode != cudaStreamCaptureModeRelaxed
                    : c->mode == cudaStreamCaptureModeGlobal && thread_capture_mode == cudaStreamCaptureModeGlobal;
        c->is_invalid = c->is_invalid || minds;
        forbids = forbids || minds;
    }
    return forbids;
}

// The legacy stream would wait for a stream that is capturing.
static bool implicit_capture(CUstream_st * q) {
    bool found = false;
    for (capture * c : the().captures) {
        for (CUstream_st * other : c->streams) {
            if (q->is_legacy && other->is_blocking && other->device == q->device) { found = c->is_invalid = true; }
        }
    }
    return found;
}

// What each call begins with: a fault, or the sticky error of the device.
static cudaError_t begin(const char * name, int device_index, bool needs_device = true) {
    const cudaError_t e = injected(name);
    if (e != cudaSuccess && is_sticky(e)) { lose_device(device_index, e); }
    if (e != cudaSuccess) { return fails(e); }
    if (is_in_host_function) {
        violation("a host function in a stream calls CUDA");
        return fails(cudaErrorNotPermitted);
    }
    if (capture_forbids(name)) { return fails(cudaErrorStreamCaptureUnsupported); }
    if (!needs_device) { return cudaSuccess; }
    const cudaError_t context = need_context();
    return fails(context != cudaSuccess ? context : the().devices[(size_t) device_index].lost);
}

// How it ends when queued work was run meanwhile.
static cudaError_t finish(int device_index) { return fails(the().devices[(size_t) device_index].lost); }

// Of calls that put work into a stream.
static cudaError_t begin_work(const char * name, CUstream_st * q) {
    const cudaError_t e = begin(name, q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    if (q->capturing != nullptr && q->capturing->is_invalid) { return fails(cudaErrorStreamCaptureInvalidated); }
    return implicit_capture(q) ? fails(cudaErrorStreamCaptureImplicit) : cudaSuccess;
}

// Of calls that wait for a stream, or ask.
static cudaError_t begin_wait(const char * name, CUstream_st * q) {
    const cudaError_t e = begin(name, q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    if (q->capturing != nullptr) {
        q->capturing->is_invalid = true;
        return fails(cudaErrorStreamCaptureUnsupported);
    }
    return implicit_capture(q) ? fails(cudaErrorStreamCaptureImplicit) : cudaSuccess;
}

// Of copies that name both devices, which no capture takes.
static cudaError_t begin_peer_copy(const char * name, CUstream_st * q) {
    const cudaError_t e = begin_work(name, q);
    if (e != cudaSuccess || q->capturing == nullptr) { return e; }
    q->capturing->is_invalid = true;
    return fails(cudaErrorStreamCaptureUnsupported);
}

#define SIM_BEGIN(name, device_index)                        \
    const guard held(the().lock);                            \
    do {                                                     \
        const cudaError_t began = begin(name, device_index); \
        if (began != cudaSuccess) { return began; }          \
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
#define X(name, number, text) \
    case number: return text;
        GCUDA_SIM_ERRORS(X)
#undef X
        default: return "unrecognized error code";
    }
}

const char * cudaGetErrorName(cudaError_t error) {
    switch ((int) error) {
#define X(name, number, text) \
    case number: return #name;
        GCUDA_SIM_ERRORS(X)
#undef X
        default: return "unrecognized error code";
    }
}

cudaError_t cudaDriverGetVersion(int * version) {
    const guard held(the().lock);
    const cudaError_t e = injected("cudaDriverGetVersion");
    return e != cudaSuccess ? fails(e) : (*version = CUDART_VERSION, cudaSuccess);
}
cudaError_t cudaRuntimeGetVersion(int * version) { return *version = CUDART_VERSION, cudaSuccess; }

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

// -1: unknown
static int attribute_of(int index, int attribute) {
    const device & d = the().devices[(size_t) index];
    const auto given = d.attributes.find(attribute);
    if (given != d.attributes.end()) { return given->second; }
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: return MAX_THREADS;
        case cudaDevAttrMaxSharedMemoryPerBlock: return SHARED_BYTES;
        case cudaDevAttrWarpSize: return warpSize;
        case cudaDevAttrClockRate: return 1000000;
        case cudaDevAttrMultiProcessorCount: return 4;
        case cudaDevAttrKernelExecTimeout: return 0;
        case cudaDevAttrIntegrated: return 0;
        case cudaDevAttrCanMapHostMemory: return 1;
        case cudaDevAttrComputeMode: return 0;
        case cudaDevAttrEccEnabled: return 0;
        case cudaDevAttrPciDomainId: return d.pci[0];
        case cudaDevAttrPciBusId: return d.pci[1];
        case cudaDevAttrPciDeviceId: return d.pci[2];
        case cudaDevAttrMemoryClockRate: return 1000000;
        case cudaDevAttrGlobalMemoryBusWidth: return 256;
        case cudaDevAttrL2CacheSize: return 1 << 20;
        case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
        case cudaDevAttrAsyncEngineCount: return 2;
        case cudaDevAttrUnifiedAddressing: return 1;
        case cudaDevAttrComputeCapabilityMajor: return GCUDA_SIM_CC / 100;
        case cudaDevAttrComputeCapabilityMinor: return GCUDA_SIM_CC / 10 % 10;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return SHARED_OPTIN_BYTES + 1024;
        case cudaDevAttrPageableMemoryAccess: return 0;
        case cudaDevAttrCanUseHostPointerForRegisteredMem: return 1;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return SHARED_OPTIN_BYTES;
        case cudaDevAttrHostRegisterSupported: return 1;
        case cudaDevAttrCooperativeLaunch: return 1;
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return 1;
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: return 1;
        case cudaDevAttrReservedSharedMemoryPerBlock: return GCUDA_SIM_CC >= 800 ? 1024 : 0;
        case cudaDevAttrHostRegisterReadOnlySupported: return 0;
        case cudaDevAttrTimelineSemaphoreInteropSupported: return 1;
        case cudaDevAttrMemoryPoolsSupported: return 0;
        default: return -1;
    }
}

cudaError_t cudaDeviceGetAttribute(int * value, enum cudaDeviceAttr attribute, int index) {
    const guard held(the().lock);
    const cudaError_t e = begin("cudaDeviceGetAttribute", current_device, false);
    if (e != cudaSuccess) { return e; }
    if (!is_device(index)) { return fails(cudaErrorInvalidDevice); }
    *value = attribute_of(index, attribute);
    return *value < 0 ? fails(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char * text, int size, int index) {
    const guard held(the().lock);
    const cudaError_t e = begin("cudaDeviceGetPCIBusId", current_device, false);
    if (e != cudaSuccess) { return e; }
    if (!is_device(index)) { return fails(cudaErrorInvalidDevice); }
    const int * pci = the().devices[(size_t) index].pci;
    const int n = size > 0 ? snprintf(text, (size_t) size, "%04X:%02X:%02X.0", pci[0], pci[1], pci[2]) : size;
    return n >= size ? fails(cudaErrorInvalidValue) : cudaSuccess;
}

// [domain:]bus:device[.function], hexadecimal
cudaError_t cudaDeviceGetByPCIBusId(int * index, const char * text) {
    const guard held(the().lock);
    const cudaError_t e = begin("cudaDeviceGetByPCIBusId", current_device, false);
    if (e != cudaSuccess) { return e; }
    unsigned domain = 0, bus = 0, number = 0;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &number) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &number) != 2) { return fails(cudaErrorInvalidValue); }
    }
    for (int i = 0; i < the().n_devices; ++i) {
        const int * pci = the().devices[(size_t) i].pci;
        if (pci[0] == (int) domain && pci[1] == (int) bus && pci[2] == (int) number) {
            *index = i;
            return cudaSuccess;
        }
    }
    return fails(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int * least, int * greatest) {
    SIM_BEGIN("cudaDeviceGetStreamPriorityRange", current_device);
    if (least != nullptr) { *least = 0; }
    if (greatest != nullptr) { *greatest = GREATEST_PRIORITY; }
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp * p, int index) {
    const guard held(the().lock);
    const cudaError_t e = begin("cudaGetDeviceProperties", current_device, false);
    if (e != cudaSuccess) { return e; }
    if (!is_device(index)) { return fails(cudaErrorInvalidDevice); }
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), "Simulated device %d", index);
    const device & d = the().devices[(size_t) index];
    p->uuid = d.uuid;
    memcpy(p->luid, d.luid, sizeof(p->luid));
    p->luidDeviceNodeMask = d.luid_mask;
    p->totalGlobalMem = the().memory_bytes;
    p->sharedMemPerBlock = SHARED_BYTES;
    p->sharedMemPerBlockOptin = (size_t) attribute_of(index, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    p->sharedMemPerMultiprocessor = (size_t) attribute_of(index, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    p->major = GCUDA_SIM_CC / 100;
    p->minor = GCUDA_SIM_CC / 10 % 10;
    p->multiProcessorCount = 4;
    p->warpSize = warpSize;
    p->maxThreadsPerBlock = MAX_THREADS;
    p->regsPerBlock = 65536;
    p->pciDomainID = d.pci[0];
    p->pciBusID = d.pci[1];
    p->pciDeviceID = d.pci[2];
    p->integrated = attribute_of(index, cudaDevAttrIntegrated);
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
    current_context = primary_of(index); // and it is made, since CUDA 12
    current_context->is_active = true;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    SIM_BEGIN("cudaDeviceSynchronize", current_device);
    for (capture * c : the().captures) {
        if (c->device != current_device) { continue; }
        c->is_invalid = true;
        return fails(cudaErrorStreamCaptureUnsupported);
    }
    run_all(the(), current_device);
    return finish(current_device);
}

cudaError_t cudaDeviceCanAccessPeer(int * can, int index, int peer) {
    SIM_BEGIN("cudaDeviceCanAccessPeer", current_device);
    if (!is_device(index) || !is_device(peer)) { return fails(cudaErrorInvalidDevice); }
    *can = the().devices[(size_t) index].peer_state[peer] != 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetP2PAttribute(int * value, cudaDeviceP2PAttr attribute, int index, int peer) {
    SIM_BEGIN("cudaDeviceGetP2PAttribute", current_device);
    if (!is_device(index) || !is_device(peer) || index == peer) { return fails(cudaErrorInvalidDevice); }
    const int how = the().devices[(size_t) index].peer_state[peer];
    switch (attribute) {
        case cudaDevP2PAttrPerformanceRank: *value = how == 4 ? 0 : 1; break;
        case cudaDevP2PAttrAccessSupported: *value = how != 0; break;
        case cudaDevP2PAttrNativeAtomicSupported: *value = how == 4; break;
        default: return fails(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    SIM_BEGIN("cudaDeviceEnablePeerAccess", current_device);
    if (!is_device(peer) || peer == current_device) { return fails(cudaErrorInvalidDevice); }
    if (flags != 0) { return fails(cudaErrorInvalidValue); }
    device & d = the().devices[(size_t) current_device];
    if (d.peer_state[peer] == 0) { return fails(cudaErrorPeerAccessUnsupported); }
    if (d.peers[peer]) { return fails(cudaErrorPeerAccessAlreadyEnabled); }
    open_for(-1);
    d.peers[peer] = true;
    return cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    SIM_BEGIN("cudaDeviceDisablePeerAccess", current_device);
    if (!is_device(peer)) { return fails(cudaErrorInvalidDevice); }
    device & d = the().devices[(size_t) current_device];
    if (!d.peers[peer]) { return fails(cudaErrorPeerAccessNotEnabled); }
    open_for(-1);
    d.peers[peer] = false;
    return cudaSuccess;
}

// =====================================================================================================
// >>memory   new memory is NaN, or -1
// =====================================================================================================

static memory new_memory(size_t size, memory_kind kind, char * alias) {
    memory m = {};
    m.size = size;
    m.device = current_device;
    m.kind = kind;
    m.alias = alias;
    m.context = current_context;
    return m;
}

static void unmap_external(uintptr_t p, const memory & m) {
    const size_t extra = p % 4096, size = (m.size + extra + 4095) / 4096 * 4096;
    munmap((void *) (p - extra), size);
    munmap(m.alias - extra, size);
    the().n_mapped--;
}

static void memory_gone(uintptr_t p) {
    state & s = the();
    const memory m = s.memories[p];
    device & d = s.devices[(size_t) m.device];
    open_for(-1);
    s.memories.erase(p);
    switch (m.kind) {
        case ON_DEVICE:
            d.used -= m.size;
            arena_free(d.memory, p, m.size);
            break;
        case EXTERNAL: unmap_external(p, m); break;
        case PAGE_LOCKED: free((void *) p); break;
        default: break;
    }
}

static cudaError_t memory_free(void * ptr, memory_kind kind) {
    state & s = the();
    if (ptr == nullptr) { return cudaSuccess; }
    auto it = s.memories.find((uintptr_t) ptr);
    if (it == s.memories.end() || (it->second.kind != kind && (kind != ON_DEVICE || it->second.kind != EXTERNAL))) {
        violation("memory is freed that was not allocated so");
        return fails(cudaErrorInvalidValue);
    }
    memory_gone((uintptr_t) ptr);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t * n_free, size_t * n_total) {
    SIM_BEGIN("cudaMemGetInfo", current_device);
    *n_total = the().memory_bytes;
    *n_free = the().memory_bytes - the().devices[(size_t) current_device].used;
    return cudaSuccess;
}

// On the current device, at a free address.
static cudaError_t device_memory_new(void ** ptr, size_t size) {
    device & d = the().devices[(size_t) current_device];
    *ptr = nullptr;
    if (size == 0) { return cudaSuccess; }
    if (size > the().memory_bytes - d.used) { return fails(cudaErrorMemoryAllocation); }
    open_for(-1);
    char * p = arena_alloc(d.memory, size, d.used);
    if (p == nullptr) { return fails(cudaErrorMemoryAllocation); }
    the().memories[(uintptr_t) p] = new_memory(size, ON_DEVICE, d.memory.alias + ((uintptr_t) p - d.memory.at));
    d.used += size;
    *ptr = p;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void ** ptr, size_t size) {
    SIM_BEGIN("cudaMalloc", current_device);
    return device_memory_new(ptr, size);
}

// Does not page: what is full is full.
cudaError_t cudaMallocManaged(void ** ptr, size_t size, unsigned flags) {
    SIM_BEGIN("cudaMallocManaged", current_device);
    return size == 0 || flags != cudaMemAttachGlobal ? fails(cudaErrorInvalidValue) : device_memory_new(ptr, size);
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
    if (size == 0) { return cudaSuccess; }
    void * p = nullptr;
    if (posix_memalign(&p, 256, size) != 0) { return fails(cudaErrorMemoryAllocation); }
    memset(p, 0xFF, size);
    the().memories[(uintptr_t) p] = new_memory(size, PAGE_LOCKED, (char *) p);
    *ptr = p;
    return cudaSuccess;
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
    the().memories[p] = new_memory(size, REGISTERED, (char *) ptr);
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

cudaError_t cudaHostGetDevicePointer(void ** device_ptr, void * host_ptr, unsigned flags) {
    SIM_BEGIN("cudaHostGetDevicePointer", current_device);
    if (flags != 0 || memory_of(host_ptr, 1, false) == nullptr) { return fails(cudaErrorInvalidValue); }
    *device_ptr = host_ptr;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes * attributes, const void * ptr) {
    SIM_BEGIN("cudaPointerGetAttributes", current_device);
    const memory * m = memory_at(ptr);
    memset(attributes, 0, sizeof(*attributes));
    attributes->type = m == nullptr              ? cudaMemoryTypeUnregistered
                       : is_device_kind(m->kind) ? cudaMemoryTypeDevice
                                                 : cudaMemoryTypeHost;
    attributes->device = m ? m->device : -2; // as CUDA says of memory it does not know
    attributes->devicePointer = m ? (void *) ptr : nullptr;
    attributes->hostPointer = m == nullptr || !is_device_kind(m->kind) ? (void *) ptr : nullptr;
    return cudaSuccess;
}

struct box { // bytes in rows in planes
    char * at;
    size_t pitch, plane;
};
struct box_size {
    size_t width, height, depth;
};

static size_t span_of(const box & x, const box_size & n) {
    return (n.depth - 1) * x.plane + (n.height - 1) * x.pitch + n.width;
}

static void copy_box(const box & dst, const box & src, const box_size & n) {
    for (size_t k = 0; k < n.depth; ++k) {
        for (size_t i = 0; i < n.height; ++i) {
            copy_bytes(dst.at + k * dst.plane + i * dst.pitch, src.at + k * src.plane + i * src.pitch, n.width);
        }
    }
}

// Device memory existed when the copy was queued; it must still exist when it runs.
static void copy_now(
    int device_index, const box & dst, bool dst_on_device, const box & src, bool src_on_device, const box_size & n) {
    if ((dst_on_device && memory_of(dst.at, span_of(dst, n), true) == nullptr) ||
        (src_on_device && memory_of(src.at, span_of(src, n), true) == nullptr)) {
        violation("a queued copy uses device memory that was freed");
        lose_device(device_index, cudaErrorIllegalAddress);
        return;
    }
    copy_box(dst, src, n);
    if (!dst_on_device || !src_on_device) { return; }
    const int to = memory_at(dst.at)->device, from = memory_at(src.at)->device;
    const device &a = the().devices[(size_t) to], &z = the().devices[(size_t) from];
    if ((a.peers[from] && a.peer_state[from] == 2) || (z.peers[to] && z.peer_state[to] == 2) || z.peer_state[to] == 3) {
        set_bytes(dst.at, 0xCD, n.width); // a link that fails silently
    }
}

// Pageable sources are read before the call returns, pageable destinations are written before it returns; page-locked
// memory is used when the stream comes to it.
static cudaError_t copy_async(box dst, box src, box_size n, bool dst_on_device, bool src_on_device, CUstream_st * q) {
    if (n.width == 0 || n.height == 0 || n.depth == 0) { return cudaSuccess; }
    const size_t dst_span = span_of(dst, n), src_span = span_of(src, n);
    if ((memory_of(dst.at, dst_span, true) != nullptr) != dst_on_device ||
        (memory_of(src.at, src_span, true) != nullptr) != src_on_device) {
        return fails(cudaErrorInvalidValue);
    }
    const bool now = q->capturing == nullptr, // a node of a graph uses pageable memory when it runs
        stage = now && !src_on_device && memory_of(src.at, src_span, false) == nullptr,
               wait = now && !dst_on_device && memory_of(dst.at, dst_span, false) == nullptr;
    std::shared_ptr<std::vector<char>> staged;
    if (stage) {
        staged = std::make_shared<std::vector<char>>(n.width * n.height * n.depth);
        const box packed = { staged->data(), n.width, n.width * n.height };
        copy_box(packed, src, n);
        src = packed;
    }
    const int device_index = q->device;
    operation o = {};
    o.type = cudaGraphNodeTypeMemcpy;
    o.cost_ns = copy_ns(n.width * n.height * n.depth);
    o.run = [=]() {
        const std::shared_ptr<std::vector<char>> keep = staged;
        copy_now(device_index, dst, dst_on_device, src, src_on_device, n);
    };
    enqueue(q, o);
    if (wait || (now && !dst_on_device && !src_on_device)) { run_until(the(), q, the().n_operations); }
    return finish(device_index);
}

// Devices with access may use ranges of virtual memory, in kernels and in copies that name no device.
static bool is_closed_to(int device_index, const box & x, const box_size & n) {
    const memory * m = memory_of(x.at, span_of(x, n), true);
    return m != nullptr && m->kind == MAPPED && m->rights[device_index] == 0;
}

static cudaError_t copy_kind(
    const box & dst, const box & src, const box_size & n, enum cudaMemcpyKind kind, CUstream_st * q) {
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) { return fails(cudaErrorInvalidMemcpyDirection); }
    if (n.width == 0 || n.height == 0) { return cudaSuccess; }
    const bool is_default = kind == cudaMemcpyDefault;
    const bool to = is_default ? memory_of(dst.at, span_of(dst, n), true) != nullptr
                               : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from = is_default ? memory_of(src.at, span_of(src, n), true) != nullptr
                                 : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (is_closed_to(q->device, dst, n) || is_closed_to(q->device, src, n)) { return fails(cudaErrorInvalidValue); }
    return copy_async(dst, src, n, to, from, q);
}

cudaError_t cudaMemcpyAsync(void * dst, const void * src, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_work("cudaMemcpyAsync", q);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    return copy_kind(box{ (char *) dst, 0, 0 }, box{ (char *) src, 0, 0 }, box_size{ size, 1, 1 }, kind, q);
}

cudaError_t cudaMemcpy2DAsync(void * dst, size_t dst_pitch, const void * src, size_t src_pitch, size_t width,
    size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_work("cudaMemcpy2DAsync", q);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    if (width > dst_pitch || width > src_pitch) { return fails(cudaErrorInvalidValue); }
    return copy_kind(
        box{ (char *) dst, dst_pitch, 0 }, box{ (char *) src, src_pitch, 0 }, box_size{ width, height, 1 }, kind, q);
}

cudaError_t cudaMemcpy(void * dst, const void * src, size_t size, enum cudaMemcpyKind kind) {
    const guard held(the().lock);
    const cudaError_t e = cudaMemcpyAsync(dst, src, size, kind, cudaStreamLegacy);
    if (e == cudaSuccess) { run_until(the(), stream_of(cudaStreamLegacy), the().n_operations); }
    return e != cudaSuccess ? e : finish(current_device);
}

static bool is_on(const box & x, const box_size & n, int device_index) {
    const memory * m = memory_of(x.at, span_of(x, n), true);
    return m != nullptr && m->device == device_index;
}

cudaError_t cudaMemcpyPeerAsync(
    void * dst, int dst_device, const void * src, int src_device, size_t size, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_peer_copy("cudaMemcpyPeerAsync", q);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    const box to = { (char *) dst, 0, 0 }, from = { (char *) src, 0, 0 };
    const box_size n = { size, 1, 1 };
    if (!is_on(to, n, dst_device) || !is_on(from, n, src_device)) { return fails(cudaErrorInvalidValue); }
    return copy_async(to, from, n, true, true, q);
}

static box box_of(const struct cudaPitchedPtr & p, const struct cudaPos & at) {
    const size_t plane = p.pitch * p.ysize;
    return box{ (char *) p.ptr + at.x + at.y * p.pitch + at.z * plane, p.pitch, plane };
}

cudaError_t cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms * p, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_peer_copy("cudaMemcpy3DPeerAsync", q);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    const box_size n = { p->extent.width, p->extent.height, p->extent.depth };
    if (p->srcArray != nullptr || p->dstArray != nullptr || p->srcPos.x + n.width > p->srcPtr.pitch ||
        p->dstPos.x + n.width > p->dstPtr.pitch ||
        (n.depth > 1 && (p->srcPos.y + n.height > p->srcPtr.ysize || p->dstPos.y + n.height > p->dstPtr.ysize))) {
        return fails(cudaErrorInvalidValue);
    }
    if (n.width == 0 || n.height == 0 || n.depth == 0) { return cudaSuccess; }
    const box to = box_of(p->dstPtr, p->dstPos), from = box_of(p->srcPtr, p->srcPos);
    if (!is_on(to, n, p->dstDevice) || !is_on(from, n, p->srcDevice)) { return fails(cudaErrorInvalidValue); }
    return copy_async(to, from, n, true, true, q);
}

cudaError_t cudaMemsetAsync(void * ptr, int value, size_t size, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_work("cudaMemsetAsync", q);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    if (size == 0) { return cudaSuccess; }
    if (memory_of(ptr, size, true) == nullptr) { return fails(cudaErrorInvalidValue); }
    const int device_index = q->device;
    operation o = {};
    o.type = cudaGraphNodeTypeMemset;
    o.cost_ns = copy_ns(size);
    o.run = [=]() {
        if (memory_of(ptr, size, true) != nullptr) {
            set_bytes(ptr, value, size);
        } else {
            violation("a queued memset uses device memory that was freed");
            lose_device(device_index, cudaErrorIllegalAddress);
        }
    };
    enqueue(q, o);
    return finish(device_index);
}

// =====================================================================================================
// >>stream
// =====================================================================================================

static cudaError_t stream_create(const char * name, cudaStream_t * stream, unsigned flags, int priority) {
    SIM_BEGIN(name, current_device);
    if (flags > cudaStreamNonBlocking) { return fails(cudaErrorInvalidValue); }
    *stream = stream_new(current_device, false, flags == cudaStreamDefault);
    (*stream)->priority = std::max((int) GREATEST_PRIORITY, std::min(priority, 0));
    (*stream)->context = current_context;
    the().streams.insert(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int * priority) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaStreamGetPriority", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    return q == nullptr ? fails(cudaErrorInvalidResourceHandle) : (*priority = q->priority, cudaSuccess);
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned * flags) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaStreamGetFlags", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    *flags = q->is_blocking || q->is_legacy ? cudaStreamDefault : cudaStreamNonBlocking;
    return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int * index) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaStreamGetDevice", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    return q == nullptr ? fails(cudaErrorInvalidResourceHandle) : (*index = q->device, cudaSuccess);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t * stream, unsigned flags, int priority) {
    return stream_create("cudaStreamCreateWithPriority", stream, flags, priority);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t * stream, unsigned flags) {
    return stream_create("cudaStreamCreateWithFlags", stream, flags, 0);
}

static void capture_end(capture * c);

static void stream_gone(CUstream_st * stream) {
    state & s = the();
    if (stream->capturing != nullptr) {
        violation("a stream is destroyed while it is capturing");
        capture * c = stream->capturing;
        c->is_invalid = true;
        c->streams.erase(stream);
        if (c->origin == stream) {
            delete c->graph;
            capture_end(c);
        }
    }
    stream->is_dead = true;
    if (stream->queue.empty()) {
        s.all_streams.erase(std::find(s.all_streams.begin(), s.all_streams.end(), stream));
        delete stream;
    }
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
    stream_gone(stream);
    return began;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_wait("cudaStreamSynchronize", q);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    run_until(the(), q, the().n_operations);
    return finish(q->device);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_wait("cudaStreamQuery", q);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    const bool done = q->queue.empty();
    if (random_below(the(), 2) == 0) { run_any(the()); }
    const cudaError_t lost = finish(q->device);
    // no error: not remembered as the last one
    return lost != cudaSuccess ? lost : done ? cudaSuccess : cudaErrorNotReady;
}

static capture * capture_of(const CUevent_st * event) {
    for (capture * c : the().captures) {
        if (c->number == event->captured) { return c; }
    }
    return nullptr;
}

// A stream that waits for an event of a capture becomes part of it.
static cudaError_t wait_captured(CUstream_st * q, const CUevent_st * event) {
    capture * c = capture_of(event);
    if (event->captured == 0) {
        if (event->last == nullptr) { return cudaSuccess; } // never recorded
        q->capturing->is_invalid = true;
        return fails(cudaErrorStreamCaptureIsolation);
    }
    if (c == nullptr) { return fails(cudaErrorCapturedEvent); } // of a capture that has ended
    if (q->capturing != nullptr && q->capturing != c) {
        q->capturing->is_invalid = c->is_invalid = true;
        return fails(cudaErrorStreamCaptureMerge);
    }
    if (c->is_invalid) { return fails(cudaErrorStreamCaptureInvalidated); }
    if (q->is_legacy) {
        c->is_invalid = true;
        return fails(cudaErrorStreamCaptureImplicit);
    }
    q->capturing = c;
    c->streams.insert(q);
    for (CUgraphNode_st * n : event->heads) {
        if (std::find(q->heads.begin(), q->heads.end(), n) == q->heads.end()) { q->heads.push_back(n); }
    }
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_work("cudaStreamWaitEvent", q);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr || the().events.count(event) == 0) { return fails(cudaErrorInvalidResourceHandle); }
    if (event->captured != 0 || q->capturing != nullptr) { return wait_captured(q, event); }
    if (event->last != nullptr && !event->last->done) {
        operation o = {};
        o.wait = event->last;
        enqueue(q, o);
    }
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*fn)(void *), void * user) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_work("cudaLaunchHostFunc", q);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    operation o = {};
    o.type = cudaGraphNodeTypeHost;
    o.run = [=]() {
        open_for(-1);
        is_in_host_function = true;
        fn(user);
        is_in_host_function = false;
    };
    enqueue(q, o);
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

cudaError_t cudaEventCreateWithFlags(cudaEvent_t * event, unsigned flags) {
    SIM_BEGIN("cudaEventCreateWithFlags", current_device);
    *event = new CUevent_st();
    (*event)->device = current_device;
    (*event)->context = current_context;
    (*event)->flags = flags;
    the().events.insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_work("cudaEventRecord", q);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr || !is_event(event) || event->device != q->device) {
        return fails(cudaErrorInvalidResourceHandle);
    }
    event->captured = q->capturing ? q->capturing->number : 0;
    event->heads = q->heads;
    if (q->capturing != nullptr) { return cudaSuccess; }
    event->last = std::make_shared<record>(record{ false, q, 0 });
    operation o = {};
    o.mark = event->last;
    enqueue(q, o);
    return finish(q->device);
}

static bool is_captured(const CUevent_st * event) {
    capture * c = capture_of(event);
    if (c != nullptr) { c->is_invalid = true; }
    return event->captured != 0;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const guard held(the().lock);
    const bool is_one = is_event(event);
    const cudaError_t e = begin("cudaEventSynchronize", is_one ? event->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (!is_one) { return fails(cudaErrorInvalidResourceHandle); }
    if (is_captured(event)) { return fails(cudaErrorCapturedEvent); }
    const std::shared_ptr<record> last = event->last;
    while (last != nullptr && !last->done) {
        if (random_below(the(), 2) == 0 || !run_any(the())) {
            if (!last->done) { run_first(towards(last->stream)); }
        }
    }
    if (last != nullptr) { the().now_ns = std::max(the().now_ns, last->time_ns); }
    return finish(event->device);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    const guard held(the().lock);
    const bool is_one = is_event(event);
    const cudaError_t e = begin("cudaEventQuery", is_one ? event->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (!is_one) { return fails(cudaErrorInvalidResourceHandle); }
    if (is_captured(event)) { return fails(cudaErrorCapturedEvent); }
    const bool done = event->last == nullptr || event->last->done;
    if (random_below(the(), 2) == 0) { run_any(the()); }
    const cudaError_t lost = finish(event->device);
    // no error: not remembered as the last one
    return lost != cudaSuccess ? lost : done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const guard held(the().lock);
    if (!is_event(event)) { return fails(cudaErrorInvalidResourceHandle); }
    const cudaError_t began = begin("cudaEventDestroy", event->device);
    the().events.erase(event);
    delete event;
    return began;
}

cudaError_t cudaEventElapsedTime(float * ms, cudaEvent_t from, cudaEvent_t to) {
    const guard held(the().lock);
    const bool are_events = is_event(from) && is_event(to);
    const cudaError_t e = begin("cudaEventElapsedTime", are_events ? from->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (are_events && (from->captured != 0 || to->captured != 0)) { return fails(cudaErrorCapturedEvent); }
    if (!are_events || from->device != to->device || ((from->flags | to->flags) & cudaEventDisableTiming) != 0 ||
        from->last == nullptr || to->last == nullptr) {
        return fails(cudaErrorInvalidResourceHandle);
    }
    if (!from->last->done || !to->last->done) { return fails(cudaErrorNotReady); }
    *ms = (float) (((double) to->last->time_ns - (double) from->last->time_ns) * 1e-6);
    return cudaSuccess;
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
    if (value < 0 || value > attribute_of(current_device, cudaDevAttrMaxSharedMemoryPerBlockOptin)) {
        return fails(cudaErrorInvalidValue);
    }
    the().shared_limit[kernel] = value;
    return cudaSuccess;
}

static size_t shared_limit_of(const void * kernel) {
    const auto limit = the().shared_limit.find(kernel);
    return limit == the().shared_limit.end() ? (size_t) SHARED_BYTES : (size_t) limit->second;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes * attributes, const void * kernel) {
    SIM_BEGIN("cudaFuncGetAttributes", current_device);
    if (kernel == nullptr) { return fails(cudaErrorInvalidValue); }
    memset(attributes, 0, sizeof(*attributes));
    attributes->maxThreadsPerBlock = MAX_THREADS;
    attributes->numRegs = 32;
    attributes->sharedSizeBytes = the().has_warp_groups ? 8 : 0; // mbarriers: see gcuda_has_warp_groups
    attributes->ptxVersion = attributes->binaryVersion = GCUDA_SIM_CC / 10;
    attributes->maxDynamicSharedSizeBytes = (int) shared_limit_of(kernel);
    return cudaSuccess;
}

// Programs, heaps and stacks are in the upper half of the addresses. The lower half has shadows of sanitizers, and two
// adjacent small numbers look like an address there.
static bool is_host_address(uintptr_t p) {
    unsigned char resident = 0;
    // neither is a small number next to padding with stale bytes, nor a float there. Such a value points into a
    // sanitizer's heap, which is reserved whole, but hardly ever at a page in use
    return p >> 46 == 1 && (p & 0xffffffffu) >= 65536 && memory_at((const void *) p) == nullptr &&
           mincore((void *) (p / 4096 * 4096), 4096, &resident) == 0 && (resident & 1) != 0;
}

// An argument that points to host memory which kernels cannot use, or NULL: neither page-locked nor registered.
static const void * pageable_argument(const sim_arguments & arguments) {
    for (size_t k = 0; k < arguments.at.size(); ++k) {
        const char * at = (const char *) arguments.at[k];
        for (size_t i = 0; (uintptr_t) at % 8 == 0 && i + 8 <= arguments.size[k]; i += 8) {
            uintptr_t p = 0;
            memcpy(&p, at + i, sizeof(p));
            if (is_host_address(p) && !is_arena_address(p)) { return (const void *) p; }
        }
    }
    return nullptr;
}

static bool is_skipped() {
    int & k = the().skip_in;
    if (k > 1) {
        --k;
        return false;
    }
    return k == 1; // and stays so
}

static cudaError_t run_kernel(int device_index, const launch_of_kernel & l) {
    const cudaError_t e = injected("kernel");
    if (e != cudaSuccess || is_skipped()) { return e; }
    const void * p = pageable_argument(l.arguments);
    if (p != nullptr) {
        char text[160];
        snprintf(text, sizeof(text), "a kernel of device %d is given %p: memory of the host, not page-locked",
            device_index, p);
        violation(text);
        return cudaErrorIllegalAddress;
    }
    return run_grid(device_index, l);
}

static void run_launch(int device_index, const launch_of_kernel & l) {
    const cudaError_t err = run_kernel(device_index, l);
    if (err != cudaSuccess) { lose_device(device_index, err); }
}

static bool overlaps(const cudaLaunchConfig_t * config) {
    bool is_so = false;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        const cudaLaunchAttribute & a = config->attrs[i];
        is_so = is_so || (a.id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                             a.val.programmaticStreamSerializationAllowed != 0);
    }
    the().n_overlapped += is_so;
    return is_so;
}

static int cluster_of(const cudaLaunchConfig_t * config) {
    int n = 0;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        n = config->attrs[i].id == cudaLaunchAttributeClusterDimension ? (int) config->attrs[i].val.clusterDim.x : n;
    }
    return n;
}

// A block takes a whole SM.
cudaError_t sim_resident_clusters(int * n, const cudaLaunchConfig_t * config) {
    SIM_BEGIN("cudaOccupancyMaxActiveClusters", current_device);
    const int size = cluster_of(config);
    if (GCUDA_SIM_CC < 900 || size < 1 || size > MAX_CLUSTER) { return fails(cudaErrorInvalidClusterSize); }
    *n = attribute_of(current_device, cudaDevAttrMultiProcessorCount) / size;
    return cudaSuccess;
}

cudaError_t sim_launch(
    const cudaLaunchConfig_t * config, const void * kernel, sim_copy_arguments copy, void ** arguments) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(config->stream);
    const cudaError_t e = begin_work("cudaLaunchKernelEx", q);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr || q->device != current_device || (q->context != nullptr && q->context != current_context)) {
        return fails(cudaErrorInvalidResourceHandle);
    }
    const int cluster = cluster_of(config);
    if (!is_launchable(config, shared_limit_of(kernel)) || cluster < 0 || cluster > MAX_CLUSTER ||
        (cluster > 0 && (GCUDA_SIM_CC < 900 || config->gridDim.x % (unsigned) cluster != 0))) {
        return fails(cudaErrorInvalidConfiguration);
    }
    operation o = {};
    o.type = cudaGraphNodeTypeKernel;
    o.launch = std::make_shared<launch_of_kernel>(launch_of_kernel{ kernel, config->gridDim, config->blockDim,
        config->dynamicSmemBytes, copy(kernel, arguments), overlaps(config), cluster_of(config) });
    enqueue(q, o);
    return finish(q->device);
}

// =====================================================================================================
// >>graph   capture into graphs, and their launches: nodes in every order that their dependencies allow
// =====================================================================================================

extern "C" {

static capture * capture_new(CUstream_st * q, enum cudaStreamCaptureMode mode) {
    capture * c = new capture();
    c->number = ++the().n_captures;
    c->graph = new CUgraph_st();
    c->mode = mode;
    c->thread = thread_number();
    c->device = q->device;
    c->origin = q;
    c->streams.insert(q);
    the().captures.insert(c);
    return c;
}

static void capture_end(capture * c) {
    for (CUstream_st * q : c->streams) {
        q->capturing = nullptr;
        q->heads.clear();
    }
    the().captures.erase(c);
    delete c;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaStreamBeginCapture", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    if (q->is_legacy) { return fails(cudaErrorStreamCaptureUnsupported); }
    if (q->capturing != nullptr) { return fails(cudaErrorIllegalState); }
    q->capturing = capture_new(q, mode);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus * status) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin("cudaStreamIsCapturing", q ? q->device : current_device);
    if (e != cudaSuccess) { return e; }
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    if (implicit_capture(q)) { return fails(cudaErrorStreamCaptureImplicit); }
    *status = q->capturing == nullptr    ? cudaStreamCaptureStatusNone
              : q->capturing->is_invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode * mode) {
    const guard held(the().lock);
    std::swap(*mode, thread_capture_mode);
    return cudaSuccess;
}

static void add_ancestors(std::set<CUgraphNode_st *> & all, CUgraphNode_st * node) {
    if (!all.insert(node).second) { return; }
    for (CUgraphNode_st * n : node->after) { add_ancestors(all, n); }
}

// All that other streams captured has come back to the one that began.
static bool is_joined(const capture & c) {
    std::set<CUgraphNode_st *> all;
    for (CUgraphNode_st * n : c.origin->heads) { add_ancestors(all, n); }
    for (const CUstream_st * q : c.streams) {
        for (CUgraphNode_st * n : q->heads) {
            if (all.count(n) == 0) { return false; }
        }
    }
    return true;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t * graph) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    *graph = nullptr;
    // what ends something does so even when it fails
    const cudaError_t began = begin("cudaStreamEndCapture", q ? q->device : current_device);
    if (q == nullptr) { return fails(cudaErrorInvalidResourceHandle); }
    capture * c = q->capturing;
    if (c == nullptr) { return fails(cudaErrorIllegalState); }
    if (c->origin != q) { return c->is_invalid = true, fails(cudaErrorStreamCaptureUnmatched); }
    if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != thread_number()) {
        return fails(cudaErrorStreamCaptureWrongThread);
    }
    const cudaError_t e = began != cudaSuccess ? began
                          : c->is_invalid      ? cudaErrorStreamCaptureInvalidated
                          : !is_joined(*c)     ? cudaErrorStreamCaptureUnjoined
                                               : cudaSuccess;
    if (e == cudaSuccess) {
        *graph = c->graph;
        the().graphs.insert(c->graph);
    } else {
        delete c->graph;
    }
    capture_end(c);
    return fails(e);
}

// ---- graphs ----
static bool is_graph(cudaGraph_t g) {
    if (the().graphs.count(g) != 0) { return true; }
    for (const capture * c : the().captures) {
        if (c->graph == g) { return true; }
    }
    violation("a graph that is destroyed or was never made");
    return false;
}

static bool is_graph_exec(cudaGraphExec_t x) {
    if (the().graph_execs.count(x) != 0) { return true; }
    violation("an executable graph that is destroyed or was never made");
    return false;
}

cudaError_t cudaGraphCreate(cudaGraph_t * graph, unsigned flags) {
    SIM_BEGIN("cudaGraphCreate", current_device);
    if (flags != 0) { return fails(cudaErrorInvalidValue); }
    *graph = new CUgraph_st();
    the().graphs.insert(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    const guard held(the().lock);
    const cudaError_t began = begin("cudaGraphDestroy", current_device);
    if (!is_graph(graph) || the().graphs.erase(graph) == 0) { return fails(cudaErrorInvalidValue); }
    delete graph;
    return began;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t * nodes, size_t * n) {
    SIM_BEGIN("cudaGraphGetNodes", current_device);
    if (!is_graph(graph)) { return fails(cudaErrorInvalidValue); }
    for (size_t i = 0; nodes != nullptr && i < *n; ++i) {
        nodes[i] = i < graph->nodes.size() ? graph->nodes[i].get() : nullptr;
    }
    *n = nodes == nullptr ? graph->nodes.size() : std::min(*n, graph->nodes.size());
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType * type) {
    SIM_BEGIN("cudaGraphNodeGetType", current_device);
    *type = node->work.type;
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(
    cudaGraphNode_t node, cudaGraphNode_t * nodes, cudaGraphEdgeData * edges, size_t * n) {
    SIM_BEGIN("cudaGraphNodeGetDependencies", current_device);
    if (nodes == nullptr && edges != nullptr) { return fails(cudaErrorInvalidValue); }
    for (size_t i = 0; nodes != nullptr && i < *n; ++i) {
        nodes[i] = i < node->after.size() ? node->after[i] : nullptr;
        if (edges != nullptr) { edges[i] = {}; }
    }
    *n = nodes == nullptr ? node->after.size() : std::min(*n, node->after.size());
    return cudaSuccess;
}

cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, struct cudaKernelNodeParams * params) {
    SIM_BEGIN("cudaGraphKernelNodeGetParams", current_device);
    if (node->work.type != cudaGraphNodeTypeKernel) { return fails(cudaErrorInvalidValue); }
    const launch_of_kernel & l = *node->work.launch;
    params->func = (void *) l.kernel;
    params->gridDim = l.grid;
    params->blockDim = l.block;
    params->sharedMemBytes = (unsigned) l.shared_bytes;
    params->kernelParams = (void **) l.arguments.at.data();
    params->extra = nullptr;
    return cudaSuccess;
}

// ---- what runs ----
static size_t index_of(const CUgraph_st & g, const CUgraphNode_st * node) {
    for (size_t i = 0; i < g.nodes.size(); ++i) {
        if (g.nodes[i].get() == node) { return i; }
    }
    return SIZE_MAX;
}

static exec_node exec_of(const CUgraph_st & g, const CUgraphNode_st & node) {
    exec_node x = { node.work, node.device, {} };
    for (const CUgraphNode_st * n : node.after) { x.after.push_back(index_of(g, n)); }
    std::sort(x.after.begin(), x.after.end());
    return x;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long) {
    SIM_BEGIN("cudaGraphInstantiate", current_device);
    *exec = nullptr;
    if (!is_graph(graph)) { return fails(cudaErrorInvalidValue); }
    *exec = new CUgraphExec_st();
    for (const auto & node : graph->nodes) { (*exec)->nodes.push_back(exec_of(*graph, *node)); }
    the().graph_execs.insert(*exec);
    return cudaSuccess;
}

// Launched work still runs.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    const guard held(the().lock);
    const cudaError_t began = begin("cudaGraphExecDestroy", current_device);
    if (!is_graph_exec(exec)) { return fails(cudaErrorInvalidValue); }
    the().graph_execs.erase(exec);
    delete exec;
    return began;
}

static enum cudaGraphExecUpdateResult differs(const exec_node & old, const exec_node & now) {
    if (old.work.type != now.work.type) { return cudaGraphExecUpdateErrorNodeTypeChanged; }
    if (old.after != now.after) { return cudaGraphExecUpdateErrorTopologyChanged; }
    return old.device != now.device ? cudaGraphExecUpdateErrorParametersChanged : cudaGraphExecUpdateSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo * info) {
    SIM_BEGIN("cudaGraphExecUpdate", current_device);
    info->errorNode = info->errorFromNode = nullptr;
    info->result = cudaGraphExecUpdateError;
    if (!is_graph_exec(exec) || !is_graph(graph)) { return fails(cudaErrorInvalidValue); }
    std::vector<exec_node> nodes;
    for (const auto & node : graph->nodes) {
        nodes.push_back(exec_of(*graph, *node));
        const size_t i = nodes.size() - 1;
        info->result =
            i < exec->nodes.size() ? differs(exec->nodes[i], nodes[i]) : cudaGraphExecUpdateErrorTopologyChanged;
        info->errorNode = node.get();
        if (info->result != cudaGraphExecUpdateSuccess) { return fails(cudaErrorGraphExecUpdateFailure); }
    }
    info->errorNode = nullptr;
    const bool is_same = nodes.size() == exec->nodes.size();
    info->result = is_same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
    if (!is_same) { return fails(cudaErrorGraphExecUpdateFailure); }
    for (size_t i = 0; i < nodes.size(); ++i) { // as CUDA 13.0: the size of clusters stays as it was
        if (nodes[i].work.type != cudaGraphNodeTypeKernel) { continue; }
        launch_of_kernel l = *nodes[i].work.launch;
        l.cluster = exec->nodes[i].work.launch->cluster;
        nodes[i].work.launch = std::make_shared<launch_of_kernel>(l);
    }
    exec->nodes = nodes;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_work("cudaGraphUpload", q);
    return e != cudaSuccess ? e : is_graph_exec(exec) ? cudaSuccess : fails(cudaErrorInvalidValue);
}

static std::shared_ptr<record> mark_now(CUstream_st * q) {
    operation o = {};
    const std::shared_ptr<record> mark = o.mark = std::make_shared<record>();
    mark->stream = q;
    enqueue(q, o);
    return mark;
}

static void wait_for(CUstream_st * q, const std::shared_ptr<record> & mark) {
    operation o = {};
    o.wait = mark;
    enqueue(q, o);
}

// A chain of nodes runs on the stream itself; other graphs get one stream per node.
static bool is_chain(const CUgraphExec_st & exec, const CUstream_st & q) {
    for (size_t i = 0; i < exec.nodes.size(); ++i) {
        const exec_node & x = exec.nodes[i];
        const bool follows = i == 0 ? x.after.empty() : x.after.size() == 1 && x.after[0] == i - 1;
        if (!follows || x.device != q.device) { return false; }
    }
    return true;
}

static void launch_spread(const CUgraphExec_st & exec, CUstream_st * q) {
    const std::shared_ptr<record> start = mark_now(q);
    std::vector<std::shared_ptr<record>> marks;
    std::vector<CUstream_st *> streams;
    for (const exec_node & x : exec.nodes) {
        CUstream_st * own = stream_new(x.device, false, false);
        streams.push_back(own);
        wait_for(own, start);
        for (size_t i : x.after) { wait_for(own, marks[i]); }
        enqueue(own, x.work);
        marks.push_back(mark_now(own));
    }
    for (size_t i = marks.size(); i > 0; --i) { // in any order
        std::swap(marks[i - 1], marks[the().seed != 0 ? random_below(the(), i) : i - 1]);
        wait_for(q, marks[i - 1]);
    }
    for (CUstream_st * own : streams) { stream_gone(own); }
}

// Launches of the same executable graph follow each other, on whatever streams.
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_work("cudaGraphLaunch", q);
    if (e != cudaSuccess) { return e; }
    if (!is_graph_exec(exec)) { return fails(cudaErrorInvalidValue); }
    if (q->capturing != nullptr) { // CUDA makes a node of it; nothing here needs that
        q->capturing->is_invalid = true;
        return fails(cudaErrorStreamCaptureUnsupported);
    }
    if (exec->last != nullptr && !exec->last->done) { wait_for(q, exec->last); }
    if (is_chain(*exec, *q)) {
        for (const exec_node & x : exec->nodes) { enqueue(q, x.work); }
    } else {
        launch_spread(*exec, q);
    }
    exec->last = mark_now(q);
    return finish(q->device);
}

} // extern "C"

// =====================================================================================================
// >>external   memory and semaphores of other interfaces, by file descriptor: the value of a semaphore is the first
//              eight bytes of its file
// =====================================================================================================

extern "C" {

static size_t file_size(int fd) {
    struct stat info;
    return fd >= 0 && fstat(fd, &info) == 0 ? (size_t) info.st_size : 0;
}

cudaError_t cudaImportExternalMemory(cudaExternalMemory_t * out, const struct cudaExternalMemoryHandleDesc * d) {
    SIM_BEGIN("cudaImportExternalMemory", current_device);
    *out = nullptr;
    if (d->type != cudaExternalMemoryHandleTypeOpaqueFd) { return fails(cudaErrorNotSupported); }
    if (d->size == 0 || file_size(d->handle.fd) < d->size || (d->flags & ~cudaExternalMemoryDedicated) != 0) {
        return fails(cudaErrorInvalidValue);
    }
    *out = new CUexternalMemory_st{ current_device, d->handle.fd, d->size };
    the().external_memories.insert(*out);
    return cudaSuccess;
}

cudaError_t cudaExternalMemoryGetMappedBuffer(
    void ** ptr, cudaExternalMemory_t external, const struct cudaExternalMemoryBufferDesc * d) {
    SIM_BEGIN("cudaExternalMemoryGetMappedBuffer", current_device);
    *ptr = nullptr;
    if (the().external_memories.count(external) == 0) { return fails(cudaErrorInvalidResourceHandle); }
    if (d->size == 0 || d->flags != 0 || d->offset > external->size || d->size > external->size - d->offset) {
        return fails(cudaErrorInvalidValue);
    }
    watch_faults();
    const size_t extra = d->offset % 4096, size = (d->size + extra + 4095) / 4096 * 4096;
    const off_t from = (off_t) (d->offset - extra);
    char * p = (char *) mmap(nullptr, size, PROT_NONE, MAP_SHARED, external->fd, from);
    char * alias = (char *) mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, external->fd, from);
    if (p == (char *) MAP_FAILED || alias == (char *) MAP_FAILED) {
        if (p != (char *) MAP_FAILED) { munmap(p, size); }
        if (alias != (char *) MAP_FAILED) { munmap(alias, size); }
        return fails(cudaErrorMemoryAllocation);
    }
    memory m = new_memory(d->size, EXTERNAL, alias + extra);
    m.device = external->device;
    m.rights[external->device] = PROT_READ | PROT_WRITE;
    open_for(-1);
    the().memories[(uintptr_t) p + extra] = m;
    the().n_mapped++;
    *ptr = p + extra;
    return cudaSuccess;
}

// Its buffers live on until they are freed.
cudaError_t cudaDestroyExternalMemory(cudaExternalMemory_t external) {
    const guard held(the().lock);
    const cudaError_t began = begin("cudaDestroyExternalMemory", current_device);
    if (the().external_memories.erase(external) == 0) {
        violation("external memory is destroyed that is none");
        return fails(cudaErrorInvalidResourceHandle);
    }
    close(external->fd);
    delete external;
    return began;
}

cudaError_t cudaImportExternalSemaphore(
    cudaExternalSemaphore_t * out, const struct cudaExternalSemaphoreHandleDesc * d) {
    SIM_BEGIN("cudaImportExternalSemaphore", current_device);
    *out = nullptr;
    const bool is_timeline = d->type == cudaExternalSemaphoreHandleTypeTimelineSemaphoreFd;
    if (!is_timeline && d->type != cudaExternalSemaphoreHandleTypeOpaqueFd) { return fails(cudaErrorNotSupported); }
    if (d->flags != 0 || file_size(d->handle.fd) < sizeof(uint64_t)) { return fails(cudaErrorInvalidValue); }
    void * p = mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, d->handle.fd, 0);
    if (p == MAP_FAILED) { return fails(cudaErrorInvalidValue); }
    *out = new CUexternalSemaphore_st{ current_device, d->handle.fd, is_timeline, (std::atomic<uint64_t> *) p };
    the().external_semaphores.insert(*out);
    return cudaSuccess;
}

static void semaphore_signal(std::atomic<uint64_t> & at, bool is_timeline, uint64_t value) {
    if (is_timeline && at.load() >= value) { violation("a timeline semaphore is signalled to no higher value"); }
    at.store(is_timeline ? value : 1);
}

cudaError_t cudaSignalExternalSemaphoresAsync(const cudaExternalSemaphore_t * semaphores,
    const struct cudaExternalSemaphoreSignalParams * params, unsigned n, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_work("cudaSignalExternalSemaphoresAsync", q);
    if (e != cudaSuccess) { return e; }
    for (unsigned i = 0; i < n; ++i) {
        if (q == nullptr || the().external_semaphores.count(semaphores[i]) == 0) {
            return fails(cudaErrorInvalidResourceHandle);
        }
    }
    for (unsigned i = 0; i < n; ++i) {
        CUexternalSemaphore_st * x = semaphores[i];
        const uint64_t value = params[i].params.fence.value;
        operation o = {};
        o.type = cudaGraphNodeTypeExtSemaphoreSignal;
        o.run = [=]() { semaphore_signal(*x->value, x->is_timeline, value); };
        enqueue(q, o);
    }
    return finish(q->device);
}

cudaError_t cudaWaitExternalSemaphoresAsync(const cudaExternalSemaphore_t * semaphores,
    const struct cudaExternalSemaphoreWaitParams * params, unsigned n, cudaStream_t stream) {
    const guard held(the().lock);
    CUstream_st * q = stream_of(stream);
    const cudaError_t e = begin_work("cudaWaitExternalSemaphoresAsync", q);
    if (e != cudaSuccess) { return e; }
    for (unsigned i = 0; i < n; ++i) {
        if (q == nullptr || the().external_semaphores.count(semaphores[i]) == 0) {
            return fails(cudaErrorInvalidResourceHandle);
        }
    }
    for (unsigned i = 0; i < n; ++i) {
        CUexternalSemaphore_st * x = semaphores[i];
        const uint64_t value = x->is_timeline ? (uint64_t) params[i].params.fence.value : 1;
        operation o = {};
        o.type = cudaGraphNodeTypeExtSemaphoreWait;
        o.ready = [=]() { return x->value->load() >= value; };
        if (!x->is_timeline) {
            o.run = [=]() { x->value->store(0); };
        }
        enqueue(q, o);
    }
    return finish(q->device);
}

// What streams still have to do with it is done first.
cudaError_t cudaDestroyExternalSemaphore(cudaExternalSemaphore_t x) {
    const guard held(the().lock);
    const cudaError_t began = begin("cudaDestroyExternalSemaphore", current_device);
    if (the().external_semaphores.count(x) == 0) {
        violation("an external semaphore is destroyed that is none");
        return fails(cudaErrorInvalidResourceHandle);
    }
    run_all(the(), x->device);
    the().external_semaphores.erase(x);
    munmap((void *) x->value, sizeof(uint64_t));
    close(x->fd);
    delete x;
    return began;
}

} // extern "C"

// =====================================================================================================
// >>driver   the functions that are looked up: contexts, virtual memory
// =====================================================================================================

extern "C" {

// As begin(); errors of the driver interface are not kept for cudaGetLastError.
static CUresult driver_begin(const char * name, int device_index = -1) {
    const cudaError_t e = injected(name);
    if (e != cudaSuccess && is_sticky(e)) { lose_device(device_index >= 0 ? device_index : current_device, e); }
    if (e != cudaSuccess) { return (CUresult) e; }
    if (is_in_host_function) {
        violation("a host function in a stream calls CUDA");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    return device_index >= 0 ? (CUresult) the().devices[(size_t) device_index].lost : CUDA_SUCCESS;
}

#define SIM_DRIVER_BEGIN(...)                             \
    const guard held(the().lock);                         \
    do {                                                  \
        const CUresult began = driver_begin(__VA_ARGS__); \
        if (began != CUDA_SUCCESS) { return began; }      \
    } while (0)

static CUresult sim_cuInit(unsigned flags) {
    SIM_DRIVER_BEGIN("cuInit");
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : the().n_devices == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

static CUresult sim_cuDriverGetVersion(int * version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }

static CUresult sim_cuGetErrorString(CUresult error, const char ** text) {
    switch ((int) error) {
#define X(name, number, words) \
    case number: *text = words; return CUDA_SUCCESS;
        GCUDA_SIM_RESULTS(X)
#undef X
        default: *text = nullptr; return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult sim_cuGetErrorName(CUresult error, const char ** text) {
    switch ((int) error) {
#define X(name, number, words) \
    case number: *text = #name; return CUDA_SUCCESS;
        GCUDA_SIM_RESULTS(X)
#undef X
        default: *text = nullptr; return CUDA_ERROR_INVALID_VALUE;
    }
}

// ---- devices ----
static CUresult sim_cuDeviceGetCount(int * n) {
    SIM_DRIVER_BEGIN("cuDeviceGetCount");
    *n = the().n_devices;
    return CUDA_SUCCESS;
}

static CUresult sim_cuDeviceGet(CUdevice * d, int index) {
    SIM_DRIVER_BEGIN("cuDeviceGet");
    if (!is_device(index)) { return CUDA_ERROR_INVALID_DEVICE; }
    *d = index;
    return CUDA_SUCCESS;
}

static CUresult sim_cuDeviceGetAttribute(int * value, CUdevice_attribute attribute, CUdevice d) {
    SIM_DRIVER_BEGIN("cuDeviceGetAttribute");
    if (!is_device(d)) { return CUDA_ERROR_INVALID_DEVICE; }
    *value = attribute_of(d, (int) attribute);
    return *value < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult sim_cuDeviceGetName(char * text, int size, CUdevice d) {
    SIM_DRIVER_BEGIN("cuDeviceGetName");
    if (!is_device(d)) { return CUDA_ERROR_INVALID_DEVICE; }
    snprintf(text, (size_t) size, "Simulated device %d", d);
    return CUDA_SUCCESS;
}

static CUresult sim_cuDeviceGetUuid(CUuuid * uuid, CUdevice d) {
    SIM_DRIVER_BEGIN("cuDeviceGetUuid");
    if (!is_device(d)) { return CUDA_ERROR_INVALID_DEVICE; }
    *uuid = the().devices[(size_t) d].uuid;
    return CUDA_SUCCESS;
}

static CUresult sim_cuDeviceGetLuid(char * luid, unsigned * mask, CUdevice d) {
    SIM_DRIVER_BEGIN("cuDeviceGetLuid");
    if (!is_device(d)) { return CUDA_ERROR_INVALID_DEVICE; }
    if (the().devices[(size_t) d].luid_mask == 0) { return CUDA_ERROR_NOT_SUPPORTED; } // as on Linux
    memcpy(luid, the().devices[(size_t) d].luid, 8);
    *mask = the().devices[(size_t) d].luid_mask;
    return CUDA_SUCCESS;
}

static CUresult sim_cuDeviceTotalMem(size_t * size, CUdevice d) {
    SIM_DRIVER_BEGIN("cuDeviceTotalMem");
    if (!is_device(d)) { return CUDA_ERROR_INVALID_DEVICE; }
    *size = the().memory_bytes;
    return CUDA_SUCCESS;
}

// ---- contexts ----
static bool is_context(CUctx_st * c) {
    for (int i = 0; i < the().n_devices; ++i) {
        if (c == primary_of(i)) { return true; }
    }
    return the().contexts.count(c) != 0;
}

static std::vector<CUctx_st *> & contexts_below() {
    if (below_current == nullptr) {
        static std::vector<std::unique_ptr<std::vector<CUctx_st *>>> & all =
            *new std::vector<std::unique_ptr<std::vector<CUctx_st *>>>(); // reachable: no leak
        all.emplace_back(new std::vector<CUctx_st *>());
        below_current = all.back().get();
    }
    return *below_current;
}

static void make_current(CUctx_st * c) {
    current_context = c;
    if (c != nullptr) { current_device = c->device; }
}

static CUresult sim_cuCtxGetCurrent(CUcontext * c) {
    SIM_DRIVER_BEGIN("cuCtxGetCurrent");
    *c = current_context;
    return CUDA_SUCCESS;
}

static CUresult sim_cuCtxSetCurrent(CUcontext c) {
    SIM_DRIVER_BEGIN("cuCtxSetCurrent");
    if (c != nullptr && !is_context(c)) { return CUDA_ERROR_INVALID_CONTEXT; }
    make_current(c);
    return CUDA_SUCCESS;
}

static CUresult sim_cuCtxPushCurrent(CUcontext c) {
    SIM_DRIVER_BEGIN("cuCtxPushCurrent");
    if (c == nullptr || !is_context(c)) { return CUDA_ERROR_INVALID_CONTEXT; }
    contexts_below().push_back(current_context);
    make_current(c);
    return CUDA_SUCCESS;
}

static void pop_context() {
    std::vector<CUctx_st *> & below = contexts_below();
    make_current(below.empty() ? nullptr : below.back());
    if (!below.empty()) { below.pop_back(); }
}

static CUresult sim_cuCtxPopCurrent(CUcontext * c) {
    SIM_DRIVER_BEGIN("cuCtxPopCurrent");
    if (current_context == nullptr) { return CUDA_ERROR_INVALID_CONTEXT; }
    if (c != nullptr) { *c = current_context; }
    pop_context();
    return CUDA_SUCCESS;
}

static CUresult sim_cuCtxGetDevice(CUdevice * d) {
    SIM_DRIVER_BEGIN("cuCtxGetDevice");
    if (current_context == nullptr) { return CUDA_ERROR_INVALID_CONTEXT; }
    *d = current_context->device;
    return CUDA_SUCCESS;
}

// sim_attribute can set what it says, in any context of the device, by a number that is no attribute of CUDA's.
static CUresult sim_cuCtxGetLimit(size_t * value, int limit) {
    enum { SHARED_LIMIT = 7, SIM_CONTEXT_SHARED = 1000 };
    SIM_DRIVER_BEGIN("cuCtxGetLimit");
    if (current_context == nullptr) { return CUDA_ERROR_INVALID_CONTEXT; }
    if (limit != SHARED_LIMIT) { return CUDA_ERROR_INVALID_VALUE; }
    const device & d = the().devices[(size_t) current_context->device];
    const auto given = d.attributes.find(SIM_CONTEXT_SHARED);
    *value = (size_t) (given != d.attributes.end()
                           ? given->second
                           : attribute_of(current_context->device, cudaDevAttrMaxSharedMemoryPerBlockOptin));
    return CUDA_SUCCESS;
}

// The fourth version of the function, that of CUDA 13.
static CUresult sim_cuCtxCreate(CUcontext * c, CUctxCreateParams *, unsigned, CUdevice d) {
    SIM_DRIVER_BEGIN("cuCtxCreate");
    *c = nullptr;
    if (!is_device(d)) { return CUDA_ERROR_INVALID_DEVICE; }
    *c = new CUctx_st{ d, false, true, 0 };
    the().contexts.insert(*c);
    contexts_below().push_back(current_context);
    make_current(*c);
    return CUDA_SUCCESS;
}

// Its objects are destroyed with it.
static CUresult sim_cuCtxDestroy(CUcontext c) {
    SIM_DRIVER_BEGIN("cuCtxDestroy");
    state & s = the();
    if (s.contexts.count(c) == 0) { return CUDA_ERROR_INVALID_CONTEXT; }
    run_all(s, c->device);
    for (auto it = s.streams.begin(); it != s.streams.end();) {
        CUstream_st * q = *it;
        it = q->context == c ? s.streams.erase(it) : std::next(it);
        if (q->context == c) { stream_gone(q); }
    }
    for (auto it = s.events.begin(); it != s.events.end();) {
        CUevent_st * event = *it;
        it = event->context == c ? s.events.erase(it) : std::next(it);
        if (event->context == c) { delete event; }
    }
    for (auto it = s.memories.begin(); it != s.memories.end();) {
        const auto next = std::next(it);
        if (it->second.context == c && it->second.kind != MAPPED) { memory_gone(it->first); }
        it = next;
    }
    if (current_context == c) { pop_context(); }
    s.contexts.erase(c);
    delete c;
    return CUDA_SUCCESS;
}

static CUresult sim_cuCtxSynchronize(void) {
    SIM_DRIVER_BEGIN("cuCtxSynchronize", current_device);
    if (current_context == nullptr) { return CUDA_ERROR_INVALID_CONTEXT; }
    run_all(the(), current_device);
    return (CUresult) the().devices[(size_t) current_device].lost;
}

static CUresult sim_cuDevicePrimaryCtxRetain(CUcontext * c, CUdevice d) {
    SIM_DRIVER_BEGIN("cuDevicePrimaryCtxRetain");
    if (!is_device(d)) { return CUDA_ERROR_INVALID_DEVICE; }
    *c = primary_of(d);
    (*c)->is_active = true;
    (*c)->n_retained++;
    return CUDA_SUCCESS;
}

static CUresult sim_cuDevicePrimaryCtxRelease(CUdevice d) {
    const guard held(the().lock);
    const CUresult began = driver_begin("cuDevicePrimaryCtxRelease"); // releases all the same
    if (!is_device(d)) { return CUDA_ERROR_INVALID_DEVICE; }
    if (primary_of(d)->n_retained == 0) { return CUDA_ERROR_INVALID_CONTEXT; }
    primary_of(d)->n_retained--;
    return began;
}

static CUresult sim_cuDevicePrimaryCtxGetState(CUdevice d, unsigned * flags, int * is_active) {
    SIM_DRIVER_BEGIN("cuDevicePrimaryCtxGetState");
    if (!is_device(d)) { return CUDA_ERROR_INVALID_DEVICE; }
    *flags = 0;
    *is_active = primary_of(d)->is_active;
    return CUDA_SUCCESS;
}

static CUresult sim_cuStreamGetCtx(CUstream stream, CUcontext * c) {
    SIM_DRIVER_BEGIN("cuStreamGetCtx");
    CUstream_st * q = stream_of(stream);
    if (q == nullptr) { return CUDA_ERROR_INVALID_HANDLE; }
    *c = q->context != nullptr ? q->context : current_context;
    return *c == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

// ---- virtual memory: addresses are reserved, memory is created, mapped there, and made accessible; all in that order,
// and backwards ----
static bool is_multiple(uint64_t n) { return n > 0 && n % PAGE_BYTES == 0; }

static CUresult sim_cuMemGetAllocationGranularity(
    size_t * size, const CUmemAllocationProp * p, CUmemAllocationGranularity_flags) {
    SIM_DRIVER_BEGIN("cuMemGetAllocationGranularity");
    if (p->type != CU_MEM_ALLOCATION_TYPE_PINNED || p->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(p->location.id)) { return CUDA_ERROR_INVALID_DEVICE; }
    *size = PAGE_BYTES;
    return CUDA_SUCCESS;
}

static CUresult sim_cuMemAddressReserve(
    CUdeviceptr * ptr, size_t size, size_t alignment, CUdeviceptr, unsigned long long flags) {
    SIM_DRIVER_BEGIN("cuMemAddressReserve");
    *ptr = 0;
    if (!is_multiple(size) || (alignment & (alignment - 1)) != 0 || flags != 0) { return CUDA_ERROR_INVALID_VALUE; }
    const size_t align = std::max(alignment, PAGE_BYTES);
    const uintptr_t all = (uintptr_t) map_memory(nullptr, size + align, PROT_NONE, -1);
    if (all == 0) { return CUDA_ERROR_OUT_OF_MEMORY; }
    const uintptr_t at = (all + align - 1) / align * align;
    if (at > all) { munmap((void *) all, at - all); }
    if (all + align > at) { munmap((void *) (at + size), all + align - at); }
    watch_faults();
    the().ranges[at] = size;
    *ptr = at;
    return CUDA_SUCCESS;
}

// A mapping that has bytes in common with these, or the end.
static std::map<uintptr_t, memory>::iterator mapping_in(uintptr_t p, size_t size) {
    state & s = the();
    auto it = s.memories.lower_bound(p);
    if (it != s.memories.begin() && std::prev(it)->first + std::prev(it)->second.size > p) { --it; }
    return it != s.memories.end() && it->first < p + size ? it : s.memories.end();
}

static CUresult sim_cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    const guard held(the().lock);
    const CUresult began = driver_begin("cuMemAddressFree"); // releases all the same
    state & s = the();
    const auto it = s.ranges.find((uintptr_t) ptr);
    if (it == s.ranges.end() || it->second != size || mapping_in((uintptr_t) ptr, size) != s.memories.end()) {
        violation("a range of addresses is freed that was not reserved so, or in which something is mapped");
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap((void *) it->first, size);
    s.ranges.erase(it);
    return began;
}

static CUresult sim_cuMemCreate(
    CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp * p, unsigned long long flags) {
    SIM_DRIVER_BEGIN("cuMemCreate", is_device(p->location.id) ? p->location.id : -1);
    *handle = 0;
    if (!is_multiple(size) || flags != 0 || p->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        p->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(p->location.id)) { return CUDA_ERROR_INVALID_DEVICE; }
    device & d = the().devices[(size_t) p->location.id];
    if (size > the().memory_bytes - d.used) { return CUDA_ERROR_OUT_OF_MEMORY; }
    const int fd = memfd_create("memory of a simulated device", MFD_CLOEXEC);
    void * alias =
        fd >= 0 && ftruncate(fd, (off_t) size) == 0 ? map_memory(nullptr, size, PROT_READ | PROT_WRITE, fd) : nullptr;
    if (alias == nullptr) {
        if (fd >= 0) { close(fd); }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memset(alias, 0xFF, size);
    d.used += size;
    *handle = ++the().n_stores;
    the().stores[*handle] = new physical{ size, p->location.id, fd, (char *) alias, 0, false };
    return CUDA_SUCCESS;
}

static void store_gone_if_unused(physical * x) {
    if (!x->is_released || x->n_mapped > 0) { return; }
    munmap(x->alias, x->size);
    close(x->fd);
    the().devices[(size_t) x->device].used -= x->size;
    delete x;
}

// The memory exists until it is unmapped.
static CUresult sim_cuMemRelease(CUmemGenericAllocationHandle handle) {
    const guard held(the().lock);
    const CUresult began = driver_begin("cuMemRelease"); // releases all the same
    const auto it = the().stores.find(handle);
    if (it == the().stores.end()) {
        violation("a memory handle is released that is none");
        return CUDA_ERROR_INVALID_VALUE;
    }
    physical * x = it->second;
    the().stores.erase(it);
    x->is_released = true;
    store_gone_if_unused(x);
    return began;
}

static CUresult sim_cuMemMap(
    CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    SIM_DRIVER_BEGIN("cuMemMap");
    state & s = the();
    const uintptr_t p = (uintptr_t) ptr;
    const auto store = s.stores.find(handle);
    if (store == s.stores.end()) { return CUDA_ERROR_INVALID_VALUE; }
    auto range = s.ranges.upper_bound(p);
    const bool is_reserved = range != s.ranges.begin() && (--range, p - range->first < range->second) &&
                             size <= range->second - (p - range->first);
    if (!is_reserved || !is_multiple(size) || p % PAGE_BYTES != 0 || offset != 0 || flags != 0 ||
        size > store->second->size) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (mapping_in(p, size) != s.memories.end()) { return CUDA_ERROR_ALREADY_MAPPED; }
    open_for(-1);
    if (map_memory((void *) p, size, PROT_NONE, store->second->fd) == nullptr) { return CUDA_ERROR_OUT_OF_MEMORY; }
    memory m = new_memory(size, MAPPED, store->second->alias);
    m.device = store->second->device;
    m.store = store->second;
    m.store->n_mapped++;
    s.memories[p] = m;
    s.n_mapped++;
    return CUDA_SUCCESS;
}

// Whole mappings that fill these bytes; their number, or 0.
static size_t whole_mappings(uintptr_t p, size_t size) {
    state & s = the();
    size_t n = 0;
    for (const uintptr_t end = p + size; p < end; ++n) {
        const auto it = s.memories.find(p);
        if (it == s.memories.end() || it->second.kind != MAPPED || it->second.size > end - p) { return 0; }
        p += it->second.size;
    }
    return n;
}

static CUresult sim_cuMemUnmap(CUdeviceptr ptr, size_t size) {
    const guard held(the().lock);
    const CUresult began = driver_begin("cuMemUnmap"); // releases all the same
    state & s = the();
    size_t n = whole_mappings((uintptr_t) ptr, size);
    if (n == 0) {
        violation("what is unmapped is not a whole mapping");
        return CUDA_ERROR_INVALID_VALUE;
    }
    open_for(-1);
    for (uintptr_t p = (uintptr_t) ptr; n > 0; --n) {
        const memory m = s.memories[p];
        s.memories.erase(p);
        s.n_mapped--;
        (void) map_memory((void *) p, m.size, PROT_NONE, -1);
        m.store->n_mapped--;
        store_gone_if_unused(m.store);
        p += m.size;
    }
    return began;
}

static CUresult sim_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc * access, size_t n_access) {
    SIM_DRIVER_BEGIN("cuMemSetAccess");
    size_t n = whole_mappings((uintptr_t) ptr, size);
    if (n == 0) { return CUDA_ERROR_INVALID_VALUE; }
    for (size_t i = 0; i < n_access; ++i) {
        const CUmemLocation & at = access[i].location;
        if (at.type != CU_MEM_LOCATION_TYPE_DEVICE || !is_device(at.id)) { return CUDA_ERROR_INVALID_DEVICE; }
    }
    open_for(-1);
    for (uintptr_t p = (uintptr_t) ptr; n > 0; --n) {
        memory & m = the().memories[p];
        for (size_t i = 0; i < n_access; ++i) {
            const CUmemAccess_flags flags = access[i].flags;
            m.rights[access[i].location.id] = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                                              : flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                                          : PROT_NONE;
        }
        p += m.size;
    }
    return CUDA_SUCCESS;
}

static CUresult sim_cuMemGetAccess(unsigned long long * flags, const CUmemLocation * at, CUdeviceptr ptr) {
    SIM_DRIVER_BEGIN("cuMemGetAccess");
    const memory * m = memory_at((const void *) (uintptr_t) ptr);
    if (m == nullptr || m->kind != MAPPED || !is_device(at->id)) { return CUDA_ERROR_INVALID_VALUE; }
    const int rights = m->rights[at->id];
    *flags = (rights & PROT_WRITE) != 0  ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : (rights & PROT_READ) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                         : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

// ---- tensor maps ----
static uint32_t map_element_bytes(int type) { // CU_TENSOR_MAP_DATA_TYPE_UINT8 and so on
    static const uint8_t bytes[] = { 1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4 };
    return type >= 0 && type < (int) sizeof(bytes) ? bytes[type] : 0;
}

static bool is_map(uint32_t size, uint32_t rank, const void * data, const uint64_t * ne, const uint64_t * nb,
    const uint32_t * box, const uint32_t * steps, int swizzle) {
    bool is_good = size > 0 && rank >= 1 && rank <= 5 && (uintptr_t) data % 16 == 0 && data != nullptr &&
                   swizzle >= 0 && swizzle <= 3;
    for (uint32_t d = 0; d < rank && is_good; ++d) {
        is_good =
            ne[d] >= 1 && ne[d] <= (uint64_t) 1 << 32 && box[d] >= 1 && box[d] <= 256 && steps[d] >= 1 && steps[d] <= 8;
        is_good = is_good && (d == 0 || (nb[d - 1] % 16 == 0 && nb[d - 1] < (uint64_t) 1 << 40));
    }
    const uint32_t inner = is_good ? box[0] * size : 0, most = 16u << swizzle; // bytes of a swizzle: 32, 64, 128
    return is_good && inner % 16 == 0 && (swizzle == 0 || inner <= most);
}

// Only this subset of the driver's options is simulated: no interleaving, steps of 1, zeros outside.
static CUresult sim_cuTensorMapEncodeTiled(void * map, int type, uint32_t rank, void * data, const uint64_t * ne,
    const uint64_t * nb, const uint32_t * box, const uint32_t * steps, int interleave, int swizzle, int promotion,
    int fill) {
    SIM_DRIVER_BEGIN("cuTensorMapEncodeTiled");
    const uint32_t size = map_element_bytes(type);
    if (map == nullptr || (uintptr_t) map % 64 != 0 || promotion < 0 || promotion > 3 || interleave != 0 || fill != 0 ||
        !is_map(size, rank, data, ne, nb, box, steps, swizzle)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_tensor_map m = {};
    m.magic = SIM_MAP_MAGIC;
    m.type = (uint8_t) type, m.rank = (uint8_t) rank, m.swizzle = (uint8_t) swizzle, m.size = (uint8_t) size;
    m.data = (uint64_t) (uintptr_t) data;
    for (uint32_t d = 0; d < rank; ++d) {
        if (steps[d] != 1) { return CUDA_ERROR_INVALID_VALUE; }
        m.ne[d] = (uint32_t) std::min<uint64_t>(ne[d], UINT32_MAX);
        m.box[d] = (uint16_t) box[d];
        if (d > 0) { m.nb[d - 1] = nb[d - 1]; }
    }
    memset(map, 0, 128);
    memcpy(map, &m, sizeof(m));
    return CUDA_SUCCESS;
}

// ---- the table ----
static const struct {
    const char * name;
    unsigned since; // the first version of CUDA in which the function has these arguments
    void * function;
} driver_functions[] = {
#define X(name, since) \
    { #name, since, (void *) sim_##name }
    X(cuInit, 2000), X(cuDriverGetVersion, 2020), X(cuGetErrorString, 6000), X(cuGetErrorName, 6000),
    X(cuDeviceGetCount, 2000), X(cuDeviceGet, 2000), X(cuDeviceGetAttribute, 2000), X(cuDeviceGetName, 2000),
    X(cuDeviceGetUuid, 11040), X(cuDeviceGetLuid, 10000), X(cuDeviceTotalMem, 3020), X(cuCtxGetCurrent, 4000),
    X(cuCtxSetCurrent, 4000), X(cuCtxPushCurrent, 4000), X(cuCtxPopCurrent, 4000), X(cuCtxGetDevice, 2000),
    X(cuCtxGetLimit, 3010), X(cuCtxCreate, 12050), X(cuCtxDestroy, 4000), X(cuCtxSynchronize, 2000),
    X(cuDevicePrimaryCtxRetain, 7000), X(cuDevicePrimaryCtxRelease, 11000), X(cuDevicePrimaryCtxGetState, 7000),
    X(cuStreamGetCtx, 9020), X(cuMemGetAllocationGranularity, 10020), X(cuMemAddressReserve, 10020),
    X(cuMemAddressFree, 10020), X(cuMemCreate, 10020), X(cuMemRelease, 10020), X(cuMemMap, 10020), X(cuMemUnmap, 10020),
    X(cuMemSetAccess, 10020), X(cuMemGetAccess, 10020), X(cuTensorMapEncodeTiled, 12000)
#undef X
};

static cudaError_t look_up(
    const char * symbol, void ** function, unsigned version, enum cudaDriverEntryPointQueryResult * result) {
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    *function = nullptr;
    for (const auto & f : driver_functions) {
        if (strcmp(f.name, symbol) != 0) { continue; }
        const bool fits = f.since <= version && version <= CUDART_VERSION;
        found = fits ? cudaDriverEntryPointSuccess : cudaDriverEntryPointVersionNotSufficent;
        *function = fits ? f.function : nullptr;
    }
    if (result != nullptr) { *result = found; }
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char * symbol, void ** function, unsigned version,
    unsigned long long, enum cudaDriverEntryPointQueryResult * result) {
    const guard held(the().lock);
    const cudaError_t e = begin("cudaGetDriverEntryPointByVersion", current_device, false);
    return e != cudaSuccess ? e : look_up(symbol, function, version, result);
}

cudaError_t cudaGetDriverEntryPoint(
    const char * symbol, void ** function, unsigned long long, enum cudaDriverEntryPointQueryResult * result) {
    const guard held(the().lock);
    const cudaError_t e = begin("cudaGetDriverEntryPoint", current_device, false);
    return e != cudaSuccess ? e : look_up(symbol, function, CUDART_VERSION, result);
}

} // extern "C"

// =====================================================================================================
// >>cublas   products of float matrices
// =====================================================================================================

extern "C" int cublasCreate_v2(void ** handle);
extern "C" int cublasDestroy_v2(void * handle);
extern "C" int cublasSetStream_v2(void * handle, cudaStream_t stream);
extern "C" int cublasGetStream_v2(void * handle, cudaStream_t * stream);
extern "C" int cublasSetMathMode(void * handle, int mode);
extern "C" int cublasGetMathMode(void * handle, int * mode);
extern "C" int cublasSetPointerMode_v2(void * handle, int mode);
extern "C" int cublasGetPointerMode_v2(void * handle, int * mode);
extern "C" int cublasSetWorkspace_v2(void * handle, void * workspace, size_t size);
extern "C" int cublasGemmStridedBatchedEx(void * handle, int op_a, int op_b, int m, int n, int k, const void * alpha,
    const void * a, int type_a, int lda, long long stride_a, const void * b, int type_b, int ldb, long long stride_b,
    const void * beta, void * c, int type_c, int ldc, long long stride_c, int n_batch, int compute, int algorithm);

extern "C" int cublasGemmEx(void * handle, int op_a, int op_b, int m, int n, int k, const void * alpha, const void * a,
    int type_a, int lda, const void * b, int type_b, int ldb, const void * beta, void * c, int type_c, int ldc,
    int compute, int algorithm);
extern "C" int cublasGemmBatchedEx(void * handle, int op_a, int op_b, int m, int n, int k, const void * alpha,
    const void * const * a, int type_a, int lda, const void * const * b, int type_b, int ldb, const void * beta,
    void * const * c, int type_c, int ldc, int n_batch, int compute, int algorithm);
extern "C" int cublasGetVersion_v2(void * handle, int * version);

enum { BLAS_NOT_INITIALIZED = 1, BLAS_INVALID_VALUE = 7, BLAS_EXECUTION_FAILED = 13, BLAS_NOT_SUPPORTED = 15 };

struct blas_handle {
    cudaStream_t stream;
    int device;
    void * workspace; // NULL, 0: its own
    size_t workspace_size;
    int math_mode, pointer_mode; // default math, scalars on the host
};

int cublasCreate_v2(void ** handle) {
    const guard held(the().lock);
    const int e = (int) injected("cublasCreate_v2");
    *handle = nullptr;
    if (e != 0) { return e; }
    if (the().devices[(size_t) current_device].lost != cudaSuccess) { return BLAS_NOT_INITIALIZED; }
    *handle = new blas_handle{ nullptr, current_device, nullptr, 0, 0, 0 };
    the().cublas.insert(*handle);
    return 0;
}

// Waits for the device, whatever the mode of the thread. Captures that are in progress, or begin meanwhile in other
// threads, are invalidated. (As with cuBLAS 13; the driver may even crash in the capturing thread.)
static void spoil_captures(int device_index) {
    for (capture * c : the().captures) { c->is_invalid = c->is_invalid || c->device == device_index; }
}

int cublasDestroy_v2(void * handle) {
    int e, device_index;
    {
        const guard held(the().lock);
        e = (int) injected("cublasDestroy_v2");
        if (the().cublas.erase(handle) == 0) {
            violation("a cuBLAS handle that is destroyed or was never made");
            return BLAS_NOT_INITIALIZED;
        }
        device_index = ((blas_handle *) handle)->device;
        delete (blas_handle *) handle;
        spoil_captures(device_index);
    }
    std::this_thread::yield(); // others may begin to capture
    const guard held(the().lock);
    if (the().devices[(size_t) device_index].lost == cudaSuccess) {
        spoil_captures(device_index);
        run_all(the(), device_index);
    }
    return e;
}

int cublasSetStream_v2(void * handle, cudaStream_t stream) {
    const guard held(the().lock);
    const int e = (int) injected("cublasSetStream_v2");
    if (e != 0) { return e; }
    if (the().cublas.count(handle) == 0) { return BLAS_NOT_INITIALIZED; }
    ((blas_handle *) handle)->stream = stream;
    ((blas_handle *) handle)->workspace = nullptr; // as cuBLAS does
    return 0;
}

static int blas_setting(const char * name, void * handle, int * stored, int * out, const int * in) {
    const guard held(the().lock);
    const int e = (int) injected(name);
    if (e != 0) { return e; }
    if (the().cublas.count(handle) == 0) { return BLAS_NOT_INITIALIZED; }
    if (in != nullptr) { *stored = *in; }
    if (out != nullptr) { *out = *stored; }
    return 0;
}
int cublasSetMathMode(void * handle, int mode) {
    return blas_setting("cublasSetMathMode", handle, &((blas_handle *) handle)->math_mode, nullptr, &mode);
}
int cublasGetMathMode(void * handle, int * mode) {
    return blas_setting("cublasGetMathMode", handle, &((blas_handle *) handle)->math_mode, mode, nullptr);
}
int cublasSetPointerMode_v2(void * handle, int mode) {
    return blas_setting("cublasSetPointerMode_v2", handle, &((blas_handle *) handle)->pointer_mode, nullptr, &mode);
}
int cublasGetPointerMode_v2(void * handle, int * mode) {
    return blas_setting("cublasGetPointerMode_v2", handle, &((blas_handle *) handle)->pointer_mode, mode, nullptr);
}
int cublasGetStream_v2(void * handle, cudaStream_t * stream) {
    const guard held(the().lock);
    const int e = (int) injected("cublasGetStream_v2");
    if (e != 0) { return e; }
    if (the().cublas.count(handle) == 0) { return BLAS_NOT_INITIALIZED; }
    *stream = ((blas_handle *) handle)->stream;
    return 0;
}

int cublasSetWorkspace_v2(void * handle, void * workspace, size_t size) {
    const guard held(the().lock);
    const int e = (int) injected("cublasSetWorkspace_v2");
    if (e != 0) { return e; }
    if (the().cublas.count(handle) == 0) { return BLAS_NOT_INITIALIZED; }
    const bool is_there = workspace == nullptr ? size == 0 : memory_of(workspace, size, true) != nullptr;
    if (!is_there || (uintptr_t) workspace % 256 != 0) { return BLAS_INVALID_VALUE; }
    ((blas_handle *) handle)->workspace = workspace;
    ((blas_handle *) handle)->workspace_size = size;
    return 0;
}

struct product {
    bool a_across, b_across; // transposed
    int m, n, k, lda, ldb, ldc;
    float alpha, beta;
    int type_a, type_b, type_c;
};

// Elements of an operand: CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF.
static size_t blas_size(int type) { return type == 0 ? 4 : type == 2 || type == 14 ? 2 : 0; }
static double blas_load(int type, const char * p) {
    uint16_t bits;
    uint32_t wide;
    memcpy(&bits, p, sizeof(bits));
    if (type == 2) { return (double) __half2float(__ushort_as_half(bits)); }
    wide = (uint32_t) bits << 16;
    if (type == 0) { memcpy(&wide, p, sizeof(wide)); }
    return (double) __uint_as_float(wide);
}

static void blas_store(int type, char * p, float v) {
    const uint16_t bits =
        type == 2 ? __half_as_ushort(__float2half_rn(v)) : __bfloat16_as_ushort(__float2bfloat16_rn(v));
    memcpy(p, type == 0 ? (const void *) &v : (const void *) &bits, blas_size(type));
}

// C = alpha A B + beta C, four rows at a time, sums in double and in the order of k.
static void multiply(const product & p, const char * a, const char * b_, char * c) {
    const int64_t size_a = (int64_t) blas_size(p.type_a), size_b = (int64_t) blas_size(p.type_b);
    const int64_t dx = (p.a_across ? 1 : p.lda) * size_a, dy = (p.b_across ? p.ldb : 1) * size_b;
    std::vector<double> x((size_t) p.k * 4), y((size_t) p.k * (size_t) p.n);
    for (int j = 0; j < p.n; ++j) {
        const char * from = b_ + (p.b_across ? j : (int64_t) j * p.ldb) * size_b;
        for (int64_t l = 0; l < p.k; ++l) { y[(size_t) (j * (int64_t) p.k + l)] = blas_load(p.type_b, from + l * dy); }
    }
    for (int i = 0; i < p.m; i += 4) {
        const int n_rows = std::min(4, p.m - i);
        for (int r = 0; r < n_rows; ++r) {
            const char * from = a + (p.a_across ? (int64_t) (i + r) * p.lda : i + r) * size_a;
            for (int64_t l = 0; l < p.k; ++l) { x[(size_t) (4 * l + r)] = blas_load(p.type_a, from + l * dx); }
        }
        for (int j = 0; j < p.n; ++j) {
            double sums[4] = {};
            const double * column = y.data() + (int64_t) j * p.k;
            for (int64_t l = 0; l < p.k; ++l) {
                for (int r = 0; r < 4; ++r) { sums[r] += x[(size_t) (4 * l + r)] * column[l]; }
            }
            for (int r = 0; r < n_rows; ++r) {
                char * out = c + ((int64_t) j * p.ldc + i + r) * (int64_t) blas_size(p.type_c);
                blas_store(p.type_c, out,
                    p.alpha * (float) sums[r] + (p.beta != 0.0f ? p.beta * (float) blas_load(p.type_c, out) : 0.0f));
            }
        }
    }
}

struct operands {
    const char *a, *b;
    char * c;
};

// One call of any of the three functions; at(i) are the matrices of product i, asked when it runs.
static int gemm(const char * name, blas_handle * handle, product p, const void * alpha, const void * beta, int n_batch,
    int compute, std::function<operands(int i)> at) {
    const int e = (int) injected(name);
    if (e != 0) { return e; }
    if (the().cublas.count(handle) == 0) { return BLAS_NOT_INITIALIZED; }
    the().gemm_compute = compute;
    const bool has_types = blas_size(p.type_a) != 0 && p.type_a == p.type_b && (p.type_c == 0 || p.type_c == p.type_a);
    if (!has_types || compute == 64 || compute == 65) { return BLAS_NOT_SUPPORTED; } // sums in half precision
    if (handle->pointer_mode != 0) { // the scalars are on the device, and read when the product runs
        violation("scalars on the host for a cuBLAS handle whose pointer mode says device");
        return BLAS_INVALID_VALUE;
    }
    const bool a_fits = p.lda >= std::max(1, p.a_across ? p.k : p.m),
               b_fits = p.ldb >= std::max(1, p.b_across ? p.n : p.k);
    if (p.m < 0 || p.n < 0 || p.k < 0 || n_batch < 0 || !a_fits || !b_fits || p.ldc < std::max(1, p.m)) {
        return BLAS_INVALID_VALUE;
    }
    CUstream_st * q = stream_of(handle->stream);
    if (q == nullptr || q->device != handle->device || (q->capturing != nullptr && q->capturing->is_invalid) ||
        implicit_capture(q) || the().devices[(size_t) q->device].lost != cudaSuccess) {
        return BLAS_EXECUTION_FAILED;
    }
    p.alpha = *(const float *) alpha;
    p.beta = *(const float *) beta;
    const blas_handle h = *handle;
    sim_arguments arguments = {};
    arguments.thread = [=]() {
        if (h.workspace != nullptr && memory_of(h.workspace, h.workspace_size, true) == nullptr) {
            violation("cuBLAS runs with a workspace that was freed");
        }
        for (int i = 0; i < n_batch; ++i) {
            const operands x = at(i);
            if (x.a != nullptr && x.b != nullptr && x.c != nullptr) { multiply(p, x.a, x.b, x.c); }
        }
    };
    operation o = {};
    o.type = cudaGraphNodeTypeKernel;
    o.launch = std::make_shared<launch_of_kernel>(
        launch_of_kernel{ (const void *) multiply, dim3(1), dim3(1), 0, arguments, false, 0 });
    enqueue(q, o);
    return 0;
}

int cublasGemmStridedBatchedEx(void * handle, int op_a, int op_b, int m, int n, int k, const void * alpha,
    const void * a, int type_a, int lda, long long stride_a, const void * b_, int type_b, int ldb, long long stride_b,
    const void * beta, void * c, int type_c, int ldc, long long stride_c, int n_batch, int compute, int) {
    const guard held(the().lock);
    const product p = { op_a != 0, op_b != 0, m, n, k, lda, ldb, ldc, 0.0f, 0.0f, type_a, type_b, type_c };
    return gemm("cublasGemmStridedBatchedEx", (blas_handle *) handle, p, alpha, beta, n_batch, compute, [=](int i) {
        return operands{ (const char *) a + i * stride_a * (int64_t) blas_size(type_a),
            (const char *) b_ + i * stride_b * (int64_t) blas_size(type_b),
            (char *) c + i * stride_c * (int64_t) blas_size(type_c) };
    });
}

int cublasGemmEx(void * handle, int op_a, int op_b, int m, int n, int k, const void * alpha, const void * a, int type_a,
    int lda, const void * b_, int type_b, int ldb, const void * beta, void * c, int type_c, int ldc, int compute, int) {
    const guard held(the().lock);
    const product p = { op_a != 0, op_b != 0, m, n, k, lda, ldb, ldc, 0.0f, 0.0f, type_a, type_b, type_c };
    return gemm("cublasGemmEx", (blas_handle *) handle, p, alpha, beta, 1, compute, [=](int) {
        return operands{ (const char *) a, (const char *) b_, (char *) c };
    });
}

// An address that a kernel wrote, read when the product runs: a graph that is replayed may have changed it meanwhile.
// cuBLAS assumes, because it cannot see it when called, that matrices are at multiples of 16 bytes.
static const char * blas_pointed(const void * const * array, int i) {
    const void * matrix = nullptr;
    if (memory_of(array + i, sizeof matrix, true) == nullptr) {
        violation("cuBLAS reads an address of a matrix where there is no device memory");
        return nullptr;
    }
    size_t n = sizeof matrix;
    memcpy(&matrix, alias_of(array + i, &n), sizeof matrix);
    if (memory_of(matrix, 1, true) == nullptr || (uintptr_t) matrix % 16 != 0) {
        violation("cuBLAS is pointed to a matrix that is not in device memory, or not at a multiple of 16 bytes");
        return nullptr;
    }
    return (const char *) matrix;
}

// The arrays of addresses are in device memory.
int cublasGemmBatchedEx(void * handle, int op_a, int op_b, int m, int n, int k, const void * alpha,
    const void * const * a, int type_a, int lda, const void * const * b_, int type_b, int ldb, const void * beta,
    void * const * c, int type_c, int ldc, int n_batch, int compute, int) {
    const guard held(the().lock);
    const product p = { op_a != 0, op_b != 0, m, n, k, lda, ldb, ldc, 0.0f, 0.0f, type_a, type_b, type_c };
    return gemm("cublasGemmBatchedEx", (blas_handle *) handle, p, alpha, beta, n_batch, compute, [=](int i) {
        return operands{ blas_pointed(a, i), blas_pointed(b_, i), (char *) (uintptr_t) blas_pointed(c, i) };
    });
}

int cublasGetVersion_v2(void * handle, int * version) {
    const guard held(the().lock);
    const int e = (int) injected("cublasGetVersion_v2");
    if (e != 0) { return e; }
    if (the().cublas.count(handle) == 0) { return BLAS_NOT_INITIALIZED; }
    *version = 130000;
    return 0;
}

// =====================================================================================================
// >>tests   sim.h
// =====================================================================================================

struct alive {
    long n;
    const char * what;
};

static std::array<alive, 16> all_alive(state & s) {
    long n[N_MEMORY_KINDS] = { 0 };
    for (const auto & m : s.memories) { n[m.second.kind]++; }
    return { { { n[ON_DEVICE], "device memory" }, { n[PAGE_LOCKED], "page-locked memory" },
        { n[REGISTERED], "registered memory" }, { n[MAPPED], "mappings" },
        { n[EXTERNAL], "buffers of external memory" }, { (long) s.stores.size(), "memory handles" },
        { (long) s.ranges.size(), "ranges of addresses" }, { (long) s.external_memories.size(), "external memories" },
        { (long) s.external_semaphores.size(), "external semaphores" }, { (long) s.streams.size(), "streams" },
        { (long) s.events.size(), "events" }, { (long) s.cublas.size(), "cuBLAS handles" },
        { (long) s.contexts.size(), "contexts" }, { (long) s.graphs.size(), "graphs" },
        { (long) s.graph_execs.size(), "executable graphs" }, { (long) s.captures.size(), "captures" } } };
}

static long count_leaks(state & s, bool print) {
    const std::array<alive, 16> all = all_alive(s);
    long total = 0;
    for (const auto & a : all) { total += a.n; }
    if (total == 0 || !print) { return total; }
    fprintf(stderr, "simulated device: alive:");
    for (const auto & a : all) {
        if (a.n > 0) { fprintf(stderr, " %ld %s;", a.n, a.what); }
    }
    fprintf(stderr, "\n");
    return total;
}

// GCUDA_SIM_FAULTS names a file: what has failed as told is appended to it (tests/sim/run.py).
static void at_exit() {
    state & s = the();
    const char * path = getenv("GCUDA_SIM_FAULTS");
    FILE * f = path != nullptr ? fopen(path, "a") : nullptr;
    if (f != nullptr) {
        for (const std::string & name : faults_seen()) { fprintf(f, "%s\n", name.c_str()); }
        fclose(f);
    }
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
    current_context = nullptr;
    last_error = cudaSuccess;
}

void sim_attribute(int index, int attribute, int value) {
    const guard held(the().lock);
    the().devices[(size_t) index].attributes[attribute] = value;
}

void sim_identity(int index, const char uuid[16], const char luid[8], unsigned luid_mask) {
    const guard held(the().lock);
    device & d = the().devices[(size_t) index];
    if (uuid != nullptr) { memcpy(d.uuid.bytes, uuid, sizeof(d.uuid.bytes)); }
    if (luid != nullptr) { memcpy(d.luid, luid, sizeof(d.luid)); }
    d.luid_mask = luid_mask;
}

void sim_pci(int index, int domain, int bus, int number) {
    const guard held(the().lock);
    const int pci[3] = { domain, bus, number };
    memcpy(the().devices[(size_t) index].pci, pci, sizeof(pci));
}

void sim_peer(int index, int peer, int how) {
    const guard held(the().lock);
    the().devices[(size_t) index].peer_state[peer] = how;
}

int sim_gemm_compute(void) {
    const guard held(the().lock);
    return the().gemm_compute;
}

int sim_has_context(int index) {
    const guard held(the().lock);
    return the().devices[(size_t) index].primary.is_active;
}

void sim_time_per_launch(uint64_t ns) {
    const guard held(the().lock);
    the().ns_per_launch = ns;
}

void sim_copy_speed(uint64_t bytes_per_us) {
    const guard held(the().lock);
    the().bytes_per_us = std::max<uint64_t>(bytes_per_us, 1);
}

uint64_t sim_time(void) {
    const guard held(the().lock);
    uint64_t t = the().now_ns;
    for (const CUstream_st * q : the().all_streams) { t = std::max(t, q->time_ns); }
    return t;
}

void sim_each_kernel(void (*fn)(void * user), void * user) {
    const guard held(the().lock);
    the().each_kernel = fn;
    the().each_kernel_user = user;
}

int sim_memory_fd(size_t size) {
    const int fd = memfd_create("memory of another interface", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t) size) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int sim_semaphore_fd(uint64_t value) {
    const int fd = sim_memory_fd(4096);
    return fd >= 0 && pwrite(fd, &value, sizeof(value), 0) == (ssize_t) sizeof(value) ? fd : -1;
}

// Without the lock: a stream may be waiting for it.
void sim_semaphore_signal(int fd, uint64_t value) {
    if (pwrite(fd, &value, sizeof(value), 0) != (ssize_t) sizeof(value)) { perror("sim_semaphore_signal"); }
}

uint64_t sim_semaphore_value(int fd) {
    uint64_t value = 0;
    return pread(fd, &value, sizeof(value), 0) == (ssize_t) sizeof(value) ? value : UINT64_MAX;
}

void sim_fail(const char * api, int k, cudaError_t error) {
    const guard held(the().lock);
    counter & c = counter_of(api);
    c.fail_in = k;
    c.error = error;
}

void sim_skip(int k) {
    const guard held(the().lock);
    the().skip_in = k;
}

int sim_failed(void) {
    const guard held(the().lock);
    return the().n_failed;
}

long sim_counts(const char * api) {
    const guard held(the().lock);
    return counter_of(api).calls;
}

long sim_overlapped(void) {
    const guard held(the().lock);
    return the().n_overlapped;
}

const char * sim_api(int index) {
    const guard held(the().lock);
    state & s = the();
    return index >= 0 && (size_t) index < s.counters.size() ? s.counters[(size_t) index].name.c_str() : nullptr;
}

long sim_retained(void) {
    const guard held(the().lock);
    long n = 0;
    for (const device & d : the().devices) { n += d.primary.n_retained; }
    return n;
}

long sim_leaks(void) {
    const guard held(the().lock);
    return count_leaks(the(), true);
}

long sim_alive(const char * what) {
    const guard held(the().lock);
    for (const alive & a : all_alive(the())) {
        if (strcmp(a.what, what) == 0) { return a.n; }
    }
    return -1;
}

const char * sim_last_violation(void) {
    const guard held(the().lock);
    return the().last_violation.c_str();
}

void sim_warp_groups(int has) {
    const guard held(the().lock);
    the().has_warp_groups = GCUDA_SIM_CC >= 900 && has != 0;
}

long sim_violations(void) {
    const guard held(the().lock);
    return the().n_violations;
}

} // extern "C"
