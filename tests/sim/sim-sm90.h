// sim-sm90.h - a part of sim.cpp: the instructions of include/sim_sm90.h, which is what to read first.
//
// What ends a kernel with a message that names it, the block and the thread:
//   deadlock         no thread can continue and no copy is in flight: what each thread waits for
//   mbarrier         one that is not initialised, not fenced or overwritten; more arrivals than it has; a block that
//                    ends with bytes expected
//   copies           alignment; two in flight to the same bytes; one into bytes that a wgmma in flight still reads;
//                    bytes of a store that change before it has read them; blocks that end with copies in flight, or
//                    are copied to after their end
//   wgmma            no fence; warps of a warpgroup that differ; descriptors that point outside or whose swizzle begins
//                    elsewhere; operands whose copy has not landed, that were written without d_fence_async, or that
//                    change before the wait; accumulators that are touched before it; threads that end without it
// Not detected: a thread without d_fence_async, if another thread of the block has called it since. Memory order that
// mbarriers give (all threads see one memory). Registers that setmaxnreg leaves. Registers of a that change after wgmma
// has been issued.

static const uint32_t SIM_MAP_MAGIC = 0x70614d54;
static const uint32_t IN_FLIGHT = 0x7fe5a5a5; // of accumulators: NaN

struct tensor_box {
    sim_tensor_map map;
    int at[5];
};

enum flight_kind { FLIES_BYTES, FLIES_BOX, FLIES_PIECES };
struct flight { // a copy into shared memory that has not landed
    flight_kind kind;
    block_of_cluster * block; // where to
    uint32_t to, n_bytes;
    const char * from;
    tensor_box box;
    lane * who; // of cp.async: who waits for these pieces, and arrives for them
    std::vector<async_copy> pieces;
    uint32_t bar;
};

struct bulk_store { // from shared memory
    bool is_read;
    char * to;
    uint32_t from;
    std::vector<char> bytes;
};

struct accumulators { // in flight
    float * at;
    int n, n_pending;
    std::vector<float> value;
};

struct pending_wgmma {
    sim_wgmma_op op;
    float * d;
    uint64_t operands;                     // a sum over their bytes, of lane 0
    uint32_t a_from, a_end, b_from, b_end; // that they lie within, of lane 0
};

struct async_lane {
    bool has_fence;
    int n_open;             // wgmmas after the last commit
    std::vector<int> n_ops; // of each group that is committed and not yet waited for
    std::vector<pending_wgmma> ops;
    std::vector<accumulators> sums;
    std::vector<bulk_store> stores;
    std::vector<size_t> n_stores; // of groups
};

static void forget(async_lane & a) {
    a.has_fence = false;
    a.n_open = 0;
    a.n_ops.clear();
    a.ops.clear();
    a.sums.clear();
    a.stores.clear();
    a.n_stores.clear();
}

static async_lane & async_here() {
    if (b.here->async == nullptr) { forget(*(b.here->async = new async_lane())); }
    return *b.here->async;
}

// ---- names of kernels: static functions, from the symbols of the program ----
static std::string demangled(const char * name) {
    int status = 0;
    char * text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    const std::string s = text != nullptr ? text : name;
    free(text);
    return s.substr(0, s.find('('));
}

static int base_of_program(struct dl_phdr_info * info, size_t, void * base) { // the first is the program
    *(uintptr_t *) base = info->dlpi_addr;
    return 1;
}

static std::string symbol_in(const char * file, size_t size, uintptr_t address) {
    const ElfW(Ehdr) * head = (const ElfW(Ehdr) *) (const void *) file;
    if (size < sizeof(*head) || head->e_shoff + head->e_shnum * sizeof(ElfW(Shdr)) > size) { return ""; }
    const ElfW(Shdr) * sections = (const ElfW(Shdr) *) (const void *) (file + head->e_shoff);
    for (int i = 0; i < head->e_shnum; ++i) {
        if (sections[i].sh_type != SHT_SYMTAB) { continue; }
        const ElfW(Sym) * symbols = (const ElfW(Sym) *) (const void *) (file + sections[i].sh_offset);
        for (size_t k = 0; k < sections[i].sh_size / sizeof(*symbols); ++k) {
            if (symbols[k].st_value == address && (symbols[k].st_info & 15) == STT_FUNC) {
                return demangled(file + sections[sections[i].sh_link].sh_offset + symbols[k].st_name);
            }
        }
    }
    return "";
}

static std::string kernel_name(const void * kernel) {
    std::string name;
    uintptr_t base = 0;
    dl_iterate_phdr(base_of_program, &base);
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    void * file = size > 0 ? mmap(nullptr, (size_t) size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (file != MAP_FAILED) {
        name = symbol_in((const char *) file, (size_t) size, (uintptr_t) kernel - base);
        munmap(file, (size_t) size);
    }
    if (fd >= 0) { close(fd); }
    return name.empty() ? "a kernel" : name;
}

// ---- messages ----
static std::string text_of(const char * format, ...) __attribute__((format(printf, 1, 2)));
static std::string text_of(const char * format, ...) {
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return text;
}

// Ends the kernel, at a fault of the thread that runs, which does not go on: nothing here may need to be freed.
static void fail_here(const char * format, ...) __attribute__((format(printf, 1, 2)));
static void fail_here(const char * format, ...) {
    static char text[600];
    const lane & l = *b.here;
    int n = snprintf(text, 300, "%s", kernel_name(b.kernel).c_str());
    n = std::min(n, 299);
    n += snprintf(text + n, 60, ", block %u, thread %d: ", l.block->index.x, l.number);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, sizeof(text) - (size_t) n, format, args);
    va_end(args);
    fail_block(text);
}

static std::string what_it_waits_for(const lane & l) {
    block_of_cluster & block = *l.block;
    switch (l.waits) {
        case WAITS_BARRIER:
            return text_of("__syncthreads (%d of %d threads are there)", block.n_at_barrier, b.n_threads);
        case WAITS_WARP: return "lanes of its warp";
        case WAITS_CLUSTER:
            return text_of("the blocks of the cluster (%d of %d threads are there)", b.n_at_cluster_barrier, b.n);
        case WAITS_NAMED: {
            const named_barrier & n = block.named[l.waits_at];
            return text_of("named barrier %u (%d of %d threads have come)", l.waits_at, n.n_here, n.n_wanted);
        }
        case WAITS_MBARRIER: {
            const mbarrier & m = block.mbarriers[l.waits_at];
            return text_of("mbarrier at %u, parity %u (%llu phases over, %d of %d arrivals and %lld bytes missing)",
                l.waits_at, l.waits_parity, (unsigned long long) m.n_phases, m.n_pending, m.n_arrivals,
                (long long) m.n_bytes);
        }
        default: return "nothing";
    }
}

// Reports a kernel in which no thread can continue.
static std::string what_all_wait_for() {
    std::string text = kernel_name(b.kernel) + ": deadlock";
    for (int k = 0; k < b.n_blocks; ++k) {
        const block_of_cluster & block = b.blocks[k];
        text += text_of("; block %u: %d of %d threads are over", block.index.x, block.n_over, b.n_threads);
        for (int i = 0; i < b.n_threads;) {
            const std::string what = what_it_waits_for(block.lanes[i]);
            int end = i + 1;
            while (end < b.n_threads && block.lanes[end].is_over == block.lanes[i].is_over &&
                   what_it_waits_for(block.lanes[end]) == what) {
                ++end;
            }
            if (!block.lanes[i].is_over) {
                text += end > i + 1 ? text_of(", threads %d to %d wait for %s", i, end - 1, what.c_str())
                                    : text_of(", thread %d waits for %s", i, what.c_str());
            }
            i = end;
        }
    }
    return text;
}

// ---- shared memory ----
void * sim_block_shared(const void * key, size_t n) {
    block_of_cluster & block = *b.here->block;
    for (const auto & s : block.statics) {
        if (s.first == key) { return block.shared + s.second; }
    }
    const uint32_t at = (std::max(block.n_static, 16u) + 15) / 16 * 16;
    if (at + n > STATIC_BYTES) { fail_here("more static shared memory than is simulated"); }
    block.statics.push_back({ key, at });
    block.n_static = at + (uint32_t) n;
    return block.shared + at;
}

uint32_t sim_shared_address(const void * p) {
    const block_of_cluster & block = *b.here->block;
    const ptrdiff_t at = (const char *) p - block.shared;
    if (at < 0 || (size_t) at > block.shared_bytes) {
        fail_here("an address that is not in this block's dynamic shared memory, nor of D_SHARED_MBARRIERS");
    }
    return (uint32_t) at;
}

static void check_shared(
    const block_of_cluster & block, uint32_t at, uint32_t n, uint32_t multiple, const char * what) {
    if (at % multiple != 0) { fail_here("%s at %u in shared memory, which is no multiple of %u", what, at, multiple); }
    if ((size_t) at + n > block.shared_bytes) {
        fail_here("%s at %u, %u bytes: behind the end of shared memory (%zu)", what, at, n, block.shared_bytes);
    }
}

// Lets others go first, now and then.
static void maybe_yield() {
    if (!b.is_mixed || random_below(the(), 8) != 0 || (b.n_started == b.n && b.n_ready == 0)) { return; }
    push_ready(b.here);
    wait_here(WAITS_NOT);
}

// ---- clusters ----
void sim_cluster(int n) {
    if (b.launch_cluster > 0 && n != b.launch_cluster) {
        fail_here("a kernel for clusters of %d, launched with clusters of %d", n, b.launch_cluster);
    }
    if (b.n_blocks > 1 || n == 1 || b.failed) { return; }
    const uint3 first = b.blocks[0].index;
    if (n < 1 || n > MAX_CLUSTER || gridDim.x % (unsigned) n != 0 || b.n_threads % 32 != 0) {
        fail_here("a grid of %u blocks in clusters of %d", gridDim.x, n);
    }
    const unsigned base = first.x / (unsigned) n * (unsigned) n;
    unsigned slot = 1;
    for (unsigned r = 0; r < (unsigned) n; ++r) {
        block_of_cluster & block = base + r == first.x ? b.blocks[0] : b.blocks[slot++];
        b.by_rank[r] = &block;
        block.rank = (int) r;
        if (&block == &b.blocks[0]) { continue; }
        if (block.shared == nullptr && !make_shared(block)) {
            fail_here("no memory for the shared memory of a cluster");
        }
        begin_block_of_cluster(block, uint3{ base + r, first.y, first.z }, (int) r);
    }
    b.n = n * b.n_threads;
    b.n_blocks = n;
}

int sim_cluster_rank() { return b.here->block->rank; }

void sim_cluster_sync() {
    if (++b.n_at_cluster_barrier < b.n) { return wait_here(WAITS_CLUSTER); }
    b.n_at_cluster_barrier = 0;
    for (int i = 0; i < b.n; ++i) {
        if (&b.lanes[i] != b.here) { push_ready(&b.lanes[i]); }
    }
}

void sim_cluster_put(uint32_t at, int rank, const void * data, uint32_t size) {
    if (rank < 0 || rank >= b.n_blocks) { fail_here("writes to block %d of a cluster of %d", rank, b.n_blocks); }
    block_of_cluster & block = *b.by_rank[rank];
    if (block.n_over == b.n_threads) { fail_here("writes to block %u of its cluster, which is over", block.index.x); }
    check_shared(block, at, size, size, "a write to another block");
    memcpy(block.shared + at, data, size);
    maybe_yield();
}

// ---- mbarrier ----
static const uint64_t MBARRIER_MARK = 0x6d62617272696572;

static mbarrier & mbarrier_at(block_of_cluster & block, uint32_t bar) {
    check_shared(block, bar, 8, 8, "an mbarrier");
    const auto m = block.mbarriers.find(bar);
    if (m == block.mbarriers.end()) { fail_here("the mbarrier at %u is not initialised", bar); }
    if (memcmp(block.shared + bar, &MBARRIER_MARK, 8) != 0) { fail_here("the mbarrier at %u was overwritten", bar); }
    return m->second;
}

static void end_phase(mbarrier & m) {
    if (m.n_pending > 0 || m.n_bytes != 0) { return; }
    m.n_phases++;
    m.n_pending = m.n_arrivals;
    for (lane * l : m.waiting) { push_ready(l); }
    m.waiting.clear();
}

void sim_mbarrier_init(uint32_t bar, int n_arrivals) {
    block_of_cluster & block = *b.here->block;
    check_shared(block, bar, 8, 8, "an mbarrier");
    if (n_arrivals < 1 || n_arrivals > (1 << 20) - 1) { fail_here("an mbarrier of %d arrivals", n_arrivals); }
    if (block.mbarriers.count(bar) != 0) { fail_here("the mbarrier at %u is initialised twice", bar); }
    mbarrier m = {};
    m.n_arrivals = m.n_pending = n_arrivals;
    block.mbarriers[bar] = m;
    memcpy(block.shared + bar, &MBARRIER_MARK, 8);
}

static void fence_mbarriers() {
    for (auto & m : b.here->block->mbarriers) { m.second.is_fenced = true; }
}
void sim_mbarrier_fence_init() { fence_mbarriers(); }

static mbarrier & fenced_mbarrier_at(block_of_cluster & block, uint32_t bar) { // for copies and other blocks
    mbarrier & m = mbarrier_at(block, bar);
    if (!m.is_fenced) {
        fail_here("the mbarrier at %u is used by a copy or another block, without d_mbarrier_fence_init "
                  "since it was initialised",
            bar);
    }
    return m;
}

void sim_mbarrier_wait(uint32_t bar, uint32_t parity) {
    lane * me = b.here;
    block_of_cluster & block = *me->block;
    if (parity > 1) { fail_here("parity %u", parity); }
    maybe_yield();
    while ((mbarrier_at(block, bar).n_phases & 1) == parity) {
        mbarrier_at(block, bar).waiting.push_back(me);
        me->waits_at = bar;
        me->waits_parity = parity;
        if (b.is_mixed && random_below(the(), 4) == 0) { (void) land_one(); }
        wait_here(WAITS_MBARRIER);
    }
}

static void arrive(block_of_cluster & block, uint32_t bar) {
    mbarrier & m = mbarrier_at(block, bar);
    if (m.n_pending == 0) { fail_here("more than the %d arrivals of the mbarrier at %u", m.n_arrivals, bar); }
    m.n_pending--;
    end_phase(m);
}

void sim_mbarrier_arrive(uint32_t bar, int rank) {
    if (rank >= b.n_blocks) { fail_here("arrives in block %d of a cluster of %d", rank, b.n_blocks); }
    block_of_cluster & block = rank < 0 ? *b.here->block : *b.by_rank[rank];
    if (block.n_over == b.n_threads) { fail_here("arrives in block %u of its cluster, which is over", block.index.x); }
    if (&block != b.here->block) { (void) fenced_mbarrier_at(block, bar); }
    arrive(block, bar);
    maybe_yield();
}

void sim_mbarrier_expect(uint32_t bar, int n_bytes) {
    if (n_bytes < 0 || n_bytes >= 1 << 20) { fail_here("expects %d bytes", n_bytes); }
    mbarrier_at(*b.here->block, bar).n_bytes += n_bytes;
}

// ---- what the asynchronous proxy sees of shared memory ----
static async_view & view_of(block_of_cluster & block) {
    async_view & v = block.view;
    if (v.bytes.empty()) { // all that was written so far counts as seen
        v.bytes.assign(block.shared, block.shared + block.shared_bytes);
        v.seen.assign(block.shared_bytes / 16 + 1, 0);
        v.now = 1;
        v.fence = 0;
    }
    return v;
}

static void note_seen(block_of_cluster & block, uint32_t at, uint32_t n) {
    async_view & v = view_of(block);
    memcpy(&v.bytes[at], block.shared + at, n);
    for (uint32_t i = at / 16; i < (at + n + 15) / 16; ++i) { v.seen[i] = v.now; }
    v.now++;
}

// 16 bytes that copy engine or wgmma read: what was written since they last did must have been fenced.
static void look_at(block_of_cluster & block, uint32_t at, const char * who) {
    async_view & v = block.view;
    if (memcmp(&v.bytes[at], block.shared + at, 16) == 0) { return; }
    if (v.fence <= v.seen[at / 16]) {
        fail_here("%s reads shared memory at %u that was written without d_fence_async", who, at);
    }
    memcpy(&v.bytes[at], block.shared + at, 16);
    v.seen[at / 16] = v.now;
}

void sim_fence_async() {
    async_view & v = view_of(*b.here->block);
    v.fence = ++v.now;
    v.now++;
    fence_mbarriers();
}

// ---- copies in flight ----
static bool reads_any_of(
    const pending_wgmma & w, const block_of_cluster & block, int warp, uint32_t from, uint32_t end);

// No copy, and no wgmma, has to do with these bytes, which become unusable.
static void take_off(const flight & f) {
    block_of_cluster & block = *f.block;
    const uint32_t end = f.to + f.n_bytes;
    for (const flight & other : b.flights) {
        if (other.kind != FLIES_PIECES && other.block == f.block && other.to < end && f.to < other.to + other.n_bytes) {
            fail_here("copies to %u in shared memory, where an earlier copy has not landed", f.to);
        }
    }
    for (int warp = 0; warp < b.n_threads / 32; ++warp) {
        const async_lane * a = block.lanes[32 * warp].async;
        for (size_t i = 0; a != nullptr && i < a->ops.size(); ++i) {
            if (reads_any_of(a->ops[i], block, warp, f.to, end)) {
                fail_here("copies to %u in shared memory, which a wgmma of warp %d, block %u still reads", f.to, warp,
                    block.index.x);
            }
        }
    }
    memset(block.shared + f.to, 0xFF, f.n_bytes);
    b.flights.push_back(f);
}

static void to_all_blocks(flight f, unsigned blocks) {
    if (blocks == 0) {
        f.block = b.here->block;
        check_shared(*f.block, f.to, f.n_bytes, f.kind == FLIES_BOX ? 128 : 16, "a copy");
        (void) fenced_mbarrier_at(*f.block, f.bar);
        take_off(f);
    }
    if (blocks >> b.n_blocks != 0) { fail_here("a copy to blocks 0x%x of a cluster of %d", blocks, b.n_blocks); }
    for (int r = 0; r < b.n_blocks; ++r) {
        if ((blocks >> r & 1u) == 0) { continue; }
        f.block = b.by_rank[r];
        check_shared(*f.block, f.to, f.n_bytes, f.kind == FLIES_BOX ? 128 : 16, "a copy");
        if (f.block->n_over == b.n_threads) { fail_here("copies to block %u, which is over", f.block->index.x); }
        (void) fenced_mbarrier_at(*f.block, f.bar);
        take_off(f);
    }
    maybe_yield();
}

void sim_tma_load(uint32_t to, const void * from, int n_bytes, uint32_t bar, unsigned blocks) {
    if (n_bytes <= 0 || n_bytes % 16 != 0 || (uintptr_t) from % 16 != 0) {
        fail_here("a bulk copy of %d bytes from %p: both are multiples of 16", n_bytes, from);
    }
    flight f = {};
    f.kind = FLIES_BYTES;
    f.to = to, f.n_bytes = (uint32_t) n_bytes, f.from = (const char *) from, f.bar = bar;
    to_all_blocks(f, blocks);
}

static tensor_box tensor_box_of(const void * map, int rank, const int * at) {
    tensor_box x = {};
    memcpy(&x.map, map, sizeof(x.map));
    if (x.map.magic != SIM_MAP_MAGIC) { fail_here("a tensor map that cuTensorMapEncodeTiled has not made"); }
    if (x.map.rank != rank) { fail_here("a copy of %d dimensions with a tensor map of %d", rank, x.map.rank); }
    if (x.map.swizzle != 0 && x.map.box[0] * x.map.size != 16 << x.map.swizzle) {
        fail_here(
            "boxes of %d bytes with %d-byte swizzle: not simulated", x.map.box[0] * x.map.size, 16 << x.map.swizzle);
    }
    for (int d = 0; d < rank; ++d) { x.at[d] = at[d]; }
    for (int d = rank; d < 5; ++d) { x.map.box[d] = 1, x.map.ne[d] = 1; }
    return x;
}

static uint32_t box_bytes(const sim_tensor_map & m) {
    uint32_t n = m.size;
    for (int d = 0; d < 5; ++d) { n *= m.box[d]; }
    return n;
}

void sim_tma_prefetch_map(const void * map) {
    sim_tensor_map m;
    memcpy(&m, map, sizeof(m));
    if (m.magic != SIM_MAP_MAGIC) { fail_here("a prefetch of a tensor map that cuTensorMapEncodeTiled has not made"); }
}
void sim_tma_prefetch_box_at(const void * map, int rank) {
    const int at[5] = { 0, 0, 0, 0, 0 };
    (void) tensor_box_of(map, rank, at);
}

void sim_tma_load_box_at(uint32_t to, const void * map, int rank, const int * at, uint32_t bar, unsigned blocks) {
    flight f = {};
    f.kind = FLIES_BOX;
    f.box = tensor_box_of(map, rank, at);
    f.to = to, f.n_bytes = box_bytes(f.box.map), f.bar = bar;
    to_all_blocks(f, blocks);
}

// Where 16 bytes of a swizzle of 32 (1), 64 (2) or 128 bytes (3) lie; 0: none.
static uint32_t swizzled(uint32_t at, int swizzle) { return at ^ ((at >> 7 & ((1u << swizzle) - 1)) << 4); }

// Calls f(where in shared memory from the box's first byte, element in global memory, first, end) for every 16 bytes of
// a box; elements first .. end - 1 of these are inside.
template <typename F> static void for_each_piece_of(const tensor_box & x, F f) {
    const sim_tensor_map & m = x.map;
    const int in_piece = 16 / m.size, n_pieces = m.box[0] / in_piece;
    uint32_t at = 0;
    for (int64_t i = 0, n = box_bytes(m) / 16 / (uint32_t) n_pieces; i < n; ++i) { // rows
        int64_t rest = i, offset = 0;
        bool is_in = true;
        for (int d = 1; d < 5; ++d) {
            const int64_t k = x.at[d] + rest % m.box[d];
            rest /= m.box[d];
            is_in = is_in && k >= 0 && k < (int64_t) m.ne[d];
            offset += k * (int64_t) m.nb[d - 1];
        }
        for (int c = 0; c < n_pieces; ++c, at += 16) {
            const int64_t k = (int64_t) x.at[0] + c * in_piece,
                          end = std::min<int64_t>(in_piece, (int64_t) m.ne[0] - k);
            f(at, (char *) (uintptr_t) m.data + offset + k * m.size, (int) std::max<int64_t>(0, -k),
                is_in ? (int) end : 0);
        }
    }
}

static void land_box(const flight & f) {
    char * shared = f.block->shared;
    const sim_tensor_map & m = f.box.map;
    enum { TFLOAT32 = 11, TFLOAT32_FTZ = 12 };
    for_each_piece_of(f.box, [&](uint32_t at, const char * from, int first, int end) {
        char * to = shared + swizzled(f.to + at, m.swizzle);
        memset(to, 0, 16);
        if (first < end) { memcpy(to + first * m.size, from + first * m.size, (size_t) ((end - first) * m.size)); }
        for (int i = 0; i < 4 && (m.type == TFLOAT32 || m.type == TFLOAT32_FTZ); ++i) {
            uint32_t v;
            memcpy(&v, to + 4 * i, 4);
            v = (v + 0x1000u) & 0xffffe000u; // NaN that overflow are as good as any
            memcpy(to + 4 * i, &v, 4);
        }
    });
}

static void land(const flight & f) {
    block_of_cluster & block = *f.block;
    if (block.n_over == b.n_threads && f.kind != FLIES_PIECES) {
        return fail_here("a copy lands in block %u, which is over", block.index.x);
    }
    switch (f.kind) {
        case FLIES_BYTES: memcpy(block.shared + f.to, f.from, f.n_bytes); break;
        case FLIES_BOX: land_box(f); break;
        case FLIES_PIECES:
            for (const async_copy & c : f.pieces) {
                memset(c.to, 0, 16);
                memcpy(c.to, c.from, (size_t) c.size);
            }
            return arrive(block, f.bar);
    }
    note_seen(block, f.to, f.n_bytes);
    mbarrier & m = mbarrier_at(block, f.bar);
    m.n_bytes -= f.n_bytes;
    end_phase(m);
}

// Any copy in flight; without seeds the first. False: there is none.
static bool land_one() {
    if (b.flights.empty()) { return false; }
    const size_t i = b.is_mixed ? random_below(the(), b.flights.size()) : 0;
    const flight f = std::move(b.flights[i]);
    b.flights.erase(b.flights.begin() + (long) i);
    land(f);
    return true;
}

// What d_copy_16 has begun becomes a flight, which arrives.
void sim_mbarrier_arrive_after_copies(uint32_t bar) {
    lane & l = *b.here;
    flight f = {};
    f.kind = FLIES_PIECES;
    f.block = l.block;
    f.who = &l;
    f.bar = bar;
    f.pieces.swap(l.copies);
    for (size_t & end : l.groups) { end = 0; }
    (void) mbarrier_at(*l.block, bar);
    b.flights.push_back(std::move(f));
    maybe_yield();
}

static void land_copies_of(const lane * l) {
    for (size_t i = 0; i < b.flights.size();) {
        if (b.flights[i].who != l) {
            ++i;
            continue;
        }
        const flight f = std::move(b.flights[i]);
        b.flights.erase(b.flights.begin() + (long) i);
        land(f);
    }
}

// ---- stores: shared memory is read, then global memory written, as late as the waits allow ----
void sim_tma_store(void * to, uint32_t from, int n_bytes) {
    if (n_bytes <= 0 || n_bytes % 16 != 0 || (uintptr_t) to % 16 != 0) {
        fail_here("a bulk store of %d bytes to %p: both are multiples of 16", n_bytes, to);
    }
    block_of_cluster & block = *b.here->block;
    check_shared(block, from, (uint32_t) n_bytes, 16, "a store");
    (void) view_of(block);
    for (uint32_t i = 0; i < (uint32_t) n_bytes; i += 16) { look_at(block, from + i, "a store"); }
    bulk_store x = {};
    x.to = (char *) to, x.from = from;
    x.bytes.assign(block.shared + from, block.shared + from + n_bytes);
    async_here().stores.push_back(std::move(x));
}

void sim_tma_commit() {
    async_lane & a = async_here();
    size_t n = a.stores.size();
    for (size_t k : a.n_stores) { n -= k; }
    a.n_stores.push_back(n);
}

static void write_store(const bulk_store & x) { memcpy(x.to, x.bytes.data(), x.bytes.size()); }

static void read_store(bulk_store & x) {
    if (memcmp(b.here->block->shared + x.from, x.bytes.data(), x.bytes.size()) != 0) {
        fail_here("shared memory at %u was written before the store that was to read it had", x.from);
    }
    x.is_read = true;
}

void sim_tma_wait(int n_pending, bool only_reads) {
    async_lane & a = async_here();
    while (a.n_stores.size() > (size_t) n_pending) {
        size_t n = 0, k = 0;
        for (; k < a.n_stores.size() - (size_t) n_pending; ++k) { n += a.n_stores[k]; }
        for (size_t i = 0; i < n; ++i) {
            if (!a.stores[i].is_read) { read_store(a.stores[i]); }
        }
        if (only_reads) { return; }
        for (size_t i = 0; i < n; ++i) { write_store(a.stores[i]); }
        a.stores.erase(a.stores.begin(), a.stores.begin() + (long) n);
        a.n_stores.erase(a.n_stores.begin(), a.n_stores.begin() + (long) k);
    }
}

// ---- named barriers, registers ----
void sim_named_barrier(int id, int n_threads, bool waits) {
    if (id < 1 || id > 15 || n_threads <= 0 || n_threads % 32 != 0 || n_threads > b.n_threads) {
        fail_here("named barrier %d of %d threads", id, n_threads);
    }
    named_barrier & n = b.here->block->named[id];
    if (n.n_here > 0 && n.n_wanted != n_threads) {
        fail_here("named barrier %d is of %d threads, and of %d", id, n.n_wanted, n_threads);
    }
    n.n_wanted = n_threads;
    if (++n.n_here == n_threads) {
        n.n_here = 0;
        for (lane * l : n.waiting) { push_ready(l); }
        n.waiting.clear();
    } else if (waits) {
        b.here->waits_at = (uint32_t) id;
        n.waiting.push_back(b.here);
        wait_here(WAITS_NAMED);
    }
}

// A block has the registers that it was launched with: here the maximum that __launch_bounds__ allows for one block per
// SM. A warpgroup that requests more than others release waits forever.
void sim_set_registers(int n, bool) {
    enum { OF_MULTIPROCESSOR = 65536, OF_THREAD = 256 };
    block_of_cluster & block = *b.here->block;
    const int fair = OF_MULTIPROCESSOR / b.n_threads / 8 * 8, launched = fair < OF_THREAD ? fair : OF_THREAD;
    if (n < 24 || n > 256 || n % 8 != 0) { fail_here("setmaxnreg of %d", n); }
    block.n_extra += n - launched;
    if (++block.n_set == b.n_threads && block.n_extra > 0) {
        fail_here("deadlock: %d registers are wanted by setmaxnreg and %d were launched",
            block.n_extra + launched * b.n_threads, launched * b.n_threads);
    }
}

// ---- wgmma: operands ----
struct descriptor {
    uint32_t start, leading, stride;
    int swizzle; // as of tensor maps: 0, 1 (32 bytes), 2, 3 (128 bytes)
};

static descriptor descriptor_of(uint64_t bits) {
    static const int swizzles[] = { 0, 3, 2, 1 };
    descriptor d;
    d.start = (uint32_t) (bits & 0x3fff) << 4;
    d.leading = (uint32_t) (bits >> 16 & 0x3fff) << 4;
    d.stride = (uint32_t) (bits >> 32 & 0x3fff) << 4;
    d.swizzle = swizzles[bits >> 62];
    if ((bits & 0x3ffec000c000c000) != 0) {
        fail_here("a descriptor of bits 0x%llx: not simulated", (unsigned long long) bits);
    }
    if ((d.start >> 7 & ((1u << d.swizzle) - 1)) != 0) {
        fail_here("a descriptor at %u, whose %d-byte swizzle does not begin there", d.start, 16 << d.swizzle);
    }
    return d;
}

static int bytes_of(sim_wgmma_type type) { return type == SIM_WGMMA_TF32 ? 4 : 2; }

// Calls f(where 16 bytes lie, row of the first element, its k) for rows first .. first + n - 1 of m or n and 32 bytes
// of k of a matrix; K-major: they are elements of one row; MN-major (trans): eight rows of one k.
template <typename F> static void for_each_piece(uint64_t bits, bool trans, int size, int first, int n, F f) {
    const descriptor d = descriptor_of(bits);
    const uint32_t wide = 1u << d.swizzle; // times 16 bytes
    if (!trans) {
        for (int row = first; row < first + n; ++row) {
            const uint32_t at = d.start + (uint32_t) row / 8 * d.stride + (uint32_t) row % 8 * 16 * wide;
            f(swizzled(at, d.swizzle), row, 0);
            f(swizzled(at + (d.swizzle != 0 ? 16 : d.leading), d.swizzle), row, 16 / size);
        }
        return;
    }
    for (int k = 0; k < 16; ++k) {
        for (int row = first; row < first + n; row += 8) {
            const uint32_t unit = (uint32_t) row / 8, k_ = (uint32_t) k;
            const uint32_t at = d.swizzle != 0 ? d.start + unit / wide * d.leading + unit % wide * 16 +
                                                     k_ / 8 * d.stride + k_ % 8 * 16 * wide
                                               : d.start + unit * d.stride + k_ % 8 * 16 + k_ / 8 * d.leading;
            f(swizzled(at, d.swizzle), row, k);
        }
    }
}

template <typename F> static void for_each_operand_piece(const sim_wgmma_op & op, int warp, F f) {
    const int size = bytes_of(op.type);
    if (!op.has_a) {
        for_each_piece(op.a, op.trans_a, size, warp % 4 * 16, 16, [&](uint32_t at, int, int) { f(at, true); });
    }
    for_each_piece(op.b, op.trans_b, size, 0, op.n, [&](uint32_t at, int, int) { f(at, false); });
}

static bool reads_any_of(const pending_wgmma & w, const block_of_cluster &, int warp, uint32_t from, uint32_t end) {
    const bool is_near = (w.a_from < end && from < w.a_end) || (w.b_from < end && from < w.b_end);
    bool reads = false;
    if (is_near) {
        for_each_operand_piece(w.op, warp, [&](uint32_t at, bool) { reads = reads || (at < end && from < at + 16); });
    }
    return reads;
}

static uint64_t sum_of_bytes(const char * p) {
    uint64_t v[2];
    memcpy(v, p, 16);
    return (v[0] ^ 0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd + (v[1] ^ v[0] >> 32) * 0xc4ceb9fe1a85ec53;
}

static uint64_t sum_of_operands(const block_of_cluster & block, const sim_wgmma_op & op, int warp) {
    uint64_t sum = 0;
    for_each_operand_piece(
        op, warp, [&](uint32_t at, bool) { sum = (sum << 1 | sum >> 63) + sum_of_bytes(block.shared + at); });
    return sum;
}

// By the first lane of a warp: what it reads exists, has landed and was fenced.
static void check_operands(pending_wgmma & w) {
    block_of_cluster & block = *b.here->block;
    const int warp = b.here->number / 32;
    w.a_from = w.b_from = UINT32_MAX;
    (void) view_of(block);
    for_each_operand_piece(w.op, warp, [&](uint32_t at, bool is_a) {
        if ((size_t) at + 16 > block.shared_bytes) {
            fail_here("a descriptor of %s points to %u, behind the end of shared memory", is_a ? "a" : "b", at);
        }
        uint32_t &from = is_a ? w.a_from : w.b_from, &end = is_a ? w.a_end : w.b_end;
        from = std::min(from, at);
        end = std::max(end, at + 16);
    });
    for (const flight & f : b.flights) {
        if (f.kind != FLIES_PIECES && f.block == &block && reads_any_of(w, block, warp, f.to, f.to + f.n_bytes)) {
            fail_here("wgmma reads shared memory at %u, where a copy has not landed", f.to);
        }
    }
    for_each_operand_piece(w.op, warp, [&](uint32_t at, bool) { look_at(block, at, "wgmma"); });
    block.view.now++;
    w.operands = sum_of_operands(block, w.op, warp);
    std::vector<uint64_t> & issued = block.issued[warp / 4];
    const uint64_t which = (w.op.has_a ? 1 : w.op.a * 31) + w.op.b * 1021 + (uint64_t) w.op.n * 8191 +
                           (uint64_t) (w.op.adds != 0) * 65537 + (uint64_t) w.op.trans_a * 131071 +
                           (uint64_t) w.op.trans_b * 524287 + (uint64_t) w.op.type * 2147483647;
    const size_t k = block.n_issued[warp]++;
    if (k == issued.size()) { issued.push_back(which); }
    if (issued[k] != which) {
        fail_here("wgmma %zu of this warp is another than that of its warpgroup's other warps", k);
    }
}

// ---- wgmma: instructions ----
void sim_wgmma_fence() { async_here().has_fence = true; }

static accumulators & accumulators_at(async_lane & a, float * d, int n) {
    for (accumulators & s : a.sums) {
        if (s.at == d) {
            if (s.n != n) { fail_here("wgmmas of different widths have the same accumulators in flight"); }
            return s;
        }
        if (d < s.at + s.n && s.at < d + n) { fail_here("wgmmas in flight share a part of their accumulators"); }
    }
    a.sums.push_back(accumulators{ d, n, 0, std::vector<float>(d, d + n) });
    for (int i = 0; i < n; ++i) { memcpy(&d[i], &IN_FLIGHT, 4); }
    return a.sums.back();
}

void sim_wgmma(const sim_wgmma_op & op, float * d) {
    async_lane & a = async_here();
    const lane & l = *b.here;
    if ((l.number / 128 + 1) * 128 > b.n_threads) { fail_here("wgmma of a warpgroup that is not whole"); }
    if (!a.has_fence) { fail_here("wgmma without d_wgmma_fence since the last wait, or since the kernel began"); }
    if (op.n < 8 || op.n > 256 || op.n % 8 != 0) { fail_here("wgmma of %d columns", op.n); }
    pending_wgmma w = { op, d, 0, 0, 0, 0, 0 };
    if (l.number % 32 == 0) { check_operands(w); }
    accumulators_at(a, d, op.n / 2).n_pending++;
    a.ops.push_back(w);
    a.n_open++;
}

void sim_wgmma_commit() {
    async_lane & a = async_here();
    a.n_ops.push_back(a.n_open);
    a.n_open = 0;
}

static const float * floats_of_halves() {
    static std::vector<float> all;
    if (all.empty()) {
        for (unsigned i = 0; i < 65536; ++i) { all.push_back(__half2float(__ushort_as_half((unsigned short) i))); }
    }
    return all.data();
}

static float element_of(sim_wgmma_type type, const char * p) {
    uint32_t bits = 0;
    memcpy(&bits, p, (size_t) bytes_of(type));
    switch (type) {
        case SIM_WGMMA_F16: return floats_of_halves()[bits];
        case SIM_WGMMA_BF16: return __uint_as_float(bits << 16);
        default: return __uint_as_float(bits & 0xffffe000u);
    }
}

struct wgmma_tile { // of a warp
    double a[16][16], sums[16][256];
    double b[16][256]; // [k][column]
};

static void read_matrix(const char * shared, const sim_wgmma_op & op, uint64_t bits, bool trans, int first, int n,
    double * to, int row_stride, int k_stride) {
    const int size = bytes_of(op.type);
    for_each_piece(bits, trans, size, first, n, [&](uint32_t at, int row, int k) {
        for (int i = 0; i < 16 / size; ++i) {
            const int r = row - first + (trans ? i : 0), k_ = k + (trans ? 0 : i);
            to[r * row_stride + k_ * k_stride] = element_of(op.type, shared + at + i * size);
        }
    });
}

// Registers of lanes as those of mma.m16n8k16, and of m16n8k8.
static void read_registers(const lane * warp, size_t i, wgmma_tile & t) {
    const sim_wgmma_type type = warp->async->ops[i].op.type;
    for (int k = 0; k < 32; ++k) {
        const uint32_t * a = warp[k].async->ops[i].op.registers;
        const int g = k / 4, q = k % 4;
        for (int e = 0; e < 4; ++e) {
            if (type == SIM_WGMMA_TF32) {
                t.a[g + 8 * (e % 2)][q + 4 * (e / 2)] = element_of(type, (const char *) &a[e]);
                continue;
            }
            for (int h = 0; h < 2; ++h) {
                t.a[g + 8 * (e % 2)][2 * q + 8 * (e / 2) + h] = element_of(type, (const char *) &a[e] + 2 * h);
            }
        }
    }
}

static void multiply_tile(wgmma_tile & t, int n_k, int n) {
    for (int row = 0; row < 16; ++row) {
        double * sums = t.sums[row];
        for (int c = 0; c < n; ++c) { sums[c] = 0.0; }
        for (int k = 0; k < n_k; ++k) {
            const double a = t.a[row][k], *from = t.b[k];
            for (int c = 0; c < n; ++c) { sums[c] += a * from[c]; }
        }
    }
}

// The i-th of a warp's wgmmas, which its first lane describes.
static void run_wgmma(lane * warp, size_t i) {
    static wgmma_tile & t = *new wgmma_tile();
    const pending_wgmma & w = warp->async->ops[i];
    const block_of_cluster & block = *warp->block;
    const int number = warp->number / 32, n_k = 32 / bytes_of(w.op.type);
    if (sum_of_operands(block, w.op, number) != w.operands) {
        fail_here("operands of a wgmma were overwritten before the wait for it (descriptors at %u and %u)",
            w.op.has_a ? 0 : (uint32_t) (w.op.a & 0x3fff) << 4, (uint32_t) (w.op.b & 0x3fff) << 4);
    }
    if (w.op.has_a) {
        read_registers(warp, i, t);
    } else {
        read_matrix(block.shared, w.op, w.op.a, w.op.trans_a, number % 4 * 16, 16, t.a[0], 16, 1);
    }
    read_matrix(block.shared, w.op, w.op.b, w.op.trans_b, 0, w.op.n, t.b[0], 1, 256);
    multiply_tile(t, n_k, w.op.n);
    for (int k = 0; k < 32; ++k) {
        async_lane & a = *warp[k].async;
        accumulators & s = accumulators_at(a, a.ops[i].d, w.op.n / 2);
        for (int e = 0; e < w.op.n / 2; ++e) {
            const double v = t.sums[k / 4 + 8 * (e % 4 / 2)][e / 4 * 8 + k % 4 * 2 + e % 2];
            s.value[(size_t) e] = (float) (a.ops[i].op.adds != 0 ? (double) s.value[(size_t) e] + v : v);
        }
        s.n_pending--;
    }
}

static bool is_same_wgmma(const sim_wgmma_op & x, const sim_wgmma_op & y) {
    return x.type == y.type && x.n == y.n && x.has_a == y.has_a && x.trans_a == y.trans_a && x.trans_b == y.trans_b &&
           (x.adds != 0) == (y.adds != 0) && (x.has_a || x.a == y.a) && x.b == y.b;
}

static void give_back(async_lane & a) { // accumulators that no wgmma in flight has
    for (size_t i = 0; i < a.sums.size();) {
        accumulators & s = a.sums[i];
        if (s.n_pending > 0) {
            ++i;
            continue;
        }
        for (int e = 0; e < s.n; ++e) {
            if (memcmp(&s.at[e], &IN_FLIGHT, 4) != 0) {
                fail_here("accumulators were written before the wait for their wgmma");
            }
        }
        memcpy(s.at, s.value.data(), (size_t) s.n * 4);
        a.sums.erase(a.sums.begin() + (long) i);
    }
}

static void run_wgmmas(const void * const * in, void * const *) {
    lane * warp = b.here - b.here->number % 32;
    const size_t n = *(const size_t *) in[0];
    for (int k = 1; k < 32; ++k) {
        if (*(const size_t *) in[k] != n) { fail_here("lanes of a warp wait for different wgmmas"); }
        for (size_t i = 0; i < n; ++i) {
            if (!is_same_wgmma(warp->async->ops[i].op, warp[k].async->ops[i].op)) {
                fail_here("lanes of a warp have different wgmmas");
            }
        }
    }
    for (size_t i = 0; i < n; ++i) { run_wgmma(warp, i); }
    for (int k = 0; k < 32; ++k) {
        async_lane & a = *warp[k].async;
        a.ops.erase(a.ops.begin(), a.ops.begin() + (long) n);
        give_back(a);
    }
}

void sim_wgmma_wait(int n_pending) {
    async_lane & a = async_here();
    size_t n = 0;
    const size_t n_groups = a.n_ops.size() > (size_t) n_pending ? a.n_ops.size() - (size_t) n_pending : 0;
    for (size_t k = 0; k < n_groups; ++k) { n += (size_t) a.n_ops[k]; }
    a.n_ops.erase(a.n_ops.begin(), a.n_ops.begin() + (long) n_groups);
    a.has_fence = false;
    sim_warp_all(run_wgmmas, &n, nullptr);
}

void sim_wgmma_read(const float * d, int n) {
    for (const accumulators & s : async_here().sums) {
        if (d < s.at + s.n && s.at < d + n) { fail_here("accumulators are read before the wait for their wgmma"); }
    }
}

// ---- ends ----
static void check_end_of_thread() {
    lane & l = *b.here;
    if (l.async == nullptr) { return; }
    async_lane & a = *l.async;
    if (!a.ops.empty()) { fail_here("ends with wgmmas in flight"); }
    for (const bulk_store & x : a.stores) {
        if (!x.is_read) { fail_here("ends before its stores have read shared memory"); }
        write_store(x);
    }
    forget(a);
}

// Checks a block whose threads have all finished.
static std::string what_is_left(const block_of_cluster & block) {
    for (const auto & m : block.mbarriers) {
        if (m.second.n_bytes != 0) {
            return text_of("%s, block %u: the mbarrier at %u ends with %lld bytes expected",
                kernel_name(b.kernel).c_str(), block.index.x, m.first, (long long) m.second.n_bytes);
        }
    }
    for (int warp = 0; warp < b.n_threads / 32; ++warp) {
        if (block.n_issued[warp] != block.issued[warp / 4].size()) {
            return text_of("%s, block %u: warp %d has %zu wgmmas, another of its warpgroup %zu",
                kernel_name(b.kernel).c_str(), block.index.x, warp, block.n_issued[warp],
                block.issued[warp / 4].size());
        }
    }
    return "";
}
