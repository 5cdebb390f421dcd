// Writes the table of operations and types in >>ops of gcuda.h: for every registry row, which types the CPU accepts for
// each source. It asks the library: the good inputs of test-errors.c, each source in every type, then
// gcuda_backend_supports_op. Built and run by tests/tools/gen_readme.py.
#define main test_main
#include "../test-errors.c"
#undef main

// Constructors that the table of test-errors.c has with extents that no quantized row can have, or with strides of one
// type.
BUILD(acc_of_any, gcuda_acc(c, in[0], in[1], in[0]->nb[1], in[0]->nb[2], in[0]->nb[3], 0))
BUILD(set_of_any, gcuda_set(c, in[0], in[1], in[0]->nb[1], in[0]->nb[2], in[0]->nb[3], 0))
BUILD(view, gcuda_view_1d(c, in[0], in[0]->ne[0], 0))
BUILD(reshape_wide, gcuda_reshape_2d(c, in[0], in[0]->ne[0], 32))
// sinks are added to a finished node
static struct gcuda_tensor * b_soft_max_sinks(struct gcuda_context * c, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    struct gcuda_tensor * y = gcuda_soft_max_ext(c, in[0], in[1], 1, 0);
    return gcuda_soft_max_add_sinks(y, in[2]) == GCUDA_STATUS_SUCCESS ? y : NULL;
}
static struct gcuda_tensor * b_flash_attn_sinks(struct gcuda_context * c, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    struct gcuda_tensor * y = gcuda_flash_attn_ext(c, in[0], in[1], in[2], in[3], 1, 0, 0);
    return gcuda_flash_attn_ext_add_sinks(y, in[4]) == GCUDA_STATUS_SUCCESS ? y : NULL;
}
static const struct ctor more[] = {
    { "soft_max", NULL, b_soft_max_sinks, "F32:8,4,2|F32:8,4|F32:2", 3, { NULL } },
    { "flash_attn_ext", NULL, b_flash_attn_sinks, "F32:16,3,4|F16:16,5,2|F16:16,5,2|F16:5,3|F32:4", 5, { NULL } },
    { "acc", NULL, b_acc_of_any, "F32:8,4|F32:8,4", 2, { NULL } },
    { "set", NULL, b_set_of_any, "F32:8,4|F32:8,4", 2, { NULL } },
    { "view", NULL, b_view, "F32:8,4", 1, { NULL } },
    { "reshape", NULL, b_reshape_wide, "F32:8,32", 1, { NULL } },
};

#define MAX_SRC 10
#define N_TYPES 40
#define BIT(t) (UINT64_C(1) << (t))

struct row {
    char name[32]; // as the constructor spells it
    int n_src;
    uint64_t types[MAX_SRC]; // bit t: source k may have type t
};

// Quantized rows are whole blocks: every extent that equals the first one of source k becomes 256 times as long.
static void widen(struct input * in, int n, int k) {
    const int64_t extent = in[k].ne[0];
    if (extent % 256 == 0) { return; }
    for (int i = 0; i < n; ++i) {
        for (int d = 0; d < 4; ++d) {
            if (in[i].ne[d] == extent && extent > 1) { in[i].ne[d] *= 256; }
        }
    }
}

// Source k of that type; source 0 of type `first`, if that is a type; with `together`, all that had the type of source
// k alike.
static bool accepts(gcuda_backend_t cpu, const struct ctor * c, int k, enum gcuda_type type, int first, bool together) {
    struct input in[MAX_SRC];
    struct gcuda_tensor * t[MAX_SRC];
    int n = 0;
    for (const char * s = c->good; s != NULL; ++n) { s = parse_input(s, &in[n]); }
    if (k >= n || in[k].null || in[0].null) { return false; }
    if (gcuda_is_quantized(type)) { widen(in, n, k); }
    if (gcuda_type_is_valid((enum gcuda_type) first)) {
        if (gcuda_is_quantized((enum gcuda_type) first)) { widen(in, n, 0); }
        in[0].type = (enum gcuda_type) first;
    }
    const enum gcuda_type old = in[k].type;
    for (int i = 0; i < n; ++i) {
        if (i == k || (together && in[i].type == old)) { in[i].type = type; }
    }
    const struct gcuda_init_params params = { 0, NULL, true };
    ctx = gcuda_init(params);
    for (int i = 0; i < n; ++i) {
        t[i] = in[i].null ? NULL
                          : gcuda_new_tensor_4d(ctx, in[i].type, in[i].ne[0], in[i].ne[1], in[i].ne[2], in[i].ne[3]);
        if (t[i] != NULL && in[i].param) { gcuda_set_param(t[i]); }
    }
    const struct gcuda_tensor * y = c->build(ctx, t, NULL);
    // others only lend their shape
    const bool yes = y != NULL && y->src[k] != NULL && gcuda_backend_supports_op(cpu, y);
    gcuda_free(ctx);
    ctx = NULL;
    return yes;
}

// Whether there are types of the other sources that it goes with.
static bool is_possible(gcuda_backend_t cpu, const struct ctor * c, int k, enum gcuda_type type) {
    bool yes = accepts(cpu, c, k, type, -1, false) || accepts(cpu, c, k, type, -1, true);
    for (int first = 0; first < N_TYPES && k > 0 && !yes; ++first) { // weights and activations, source and destination
        yes = gcuda_type_is_valid((enum gcuda_type) first) && accepts(cpu, c, k, type, first, false);
    }
    return yes;
}

static void fill_row(gcuda_backend_t cpu, struct row * row, const struct ctor * from, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        if (strcmp(op_name(&from[i]), row->name) != 0) { continue; }
        for (int k = 0; k < MAX_SRC; ++k) {
            for (int type = 0; type < N_TYPES; ++type) {
                if (!gcuda_type_is_valid((enum gcuda_type) type)) { continue; }
                if (is_possible(cpu, &from[i], k, (enum gcuda_type) type)) {
                    row->types[k] |= UINT64_C(1) << type;
                    if (k + 1 > row->n_src) { row->n_src = k + 1; }
                }
            }
        }
    }
}

static const char * upper(const char * name) {
    static char text[32];
    size_t i = 0;
    for (; name[i] && i < sizeof text - 1; ++i) { text[i] = (char) toupper((unsigned char) name[i]); }
    text[i] = '\0';
    return text;
}

// ---- lines of a comment, broken before a word that would reach beyond MAX_COLUMNS ----

enum { MAX_COLUMNS = 120 };
static int column; // of the line that is begun

static void begin_line(const char * indent) { column = printf("//%s", indent); }
static void end_line(void) { printf("\n"); }

static void word(const char * before, const char * text, const char * after) {
    const int n = (int) (strlen(before) + strlen(text) + strlen(after));
    if (column + 1 + n + 1 > MAX_COLUMNS) { // a comma may follow
        end_line();
        begin_line("      ");
    }
    column += printf(" %s%s%s", before, text, after);
}

static void print_types(uint64_t types, const char * before, const char * after) {
    static const enum gcuda_type order[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_F64,
        GCUDA_TYPE_I8, GCUDA_TYPE_I16, GCUDA_TYPE_I32, GCUDA_TYPE_I64 };
    char words[N_TYPES + 4][16];
    int n = 0;
    uint64_t quantized = 0, all = 0;
    for (int t = 0; t < N_TYPES; ++t) {
        if (!gcuda_type_is_valid((enum gcuda_type) t)) { continue; }
        all |= BIT(t);
        if (gcuda_is_quantized((enum gcuda_type) t)) { quantized |= BIT(t); }
    }
    const bool most = types != all && (types & BIT(GCUDA_TYPE_Q4_0)) != 0; // a single activation format is named
    for (size_t i = 0; i < sizeof order / sizeof order[0] && types != all; ++i) {
        if (types >> order[i] & 1) { snprintf(words[n++], sizeof words[0], "%s", upper(gcuda_type_name(order[i]))); }
    }
    if (types == all) { snprintf(words[n++], sizeof words[0], "all types"); }
    if (most) { snprintf(words[n++], sizeof words[0], "all quantized"); }
    if (most && (quantized & ~types) != 0) { snprintf(words[n++], sizeof words[0], "but"); }
    for (int t = 0; t < N_TYPES && types != all; ++t) {
        const uint64_t named = most ? quantized & ~types : quantized & types;
        if (named & BIT(t)) {
            snprintf(words[n++], sizeof words[0], "%s", upper(gcuda_type_name((enum gcuda_type) t)));
        }
    }
    for (int i = 0; i < n; ++i) { word(i == 0 ? before : "", words[i], i + 1 == n ? after : ""); }
}

static bool is_uniform(const struct row * r) {
    for (int k = 1; k < r->n_src; ++k) {
        if (r->types[k] != r->types[0]) { return false; }
    }
    return true;
}

static bool same_types(const struct row * a, const struct row * b) {
    if (is_uniform(a) && is_uniform(b)) { return a->types[0] == b->types[0]; }
    return a->n_src == b->n_src && memcmp(a->types, b->types, sizeof a->types) == 0;
}

// The types of the first row, then its name and those of the others with the same types.
static void print_group(const struct row * rows, int n, bool * is_printed) {
    const char * comma = "";
    begin_line("  ");
    for (int k = 0; k < rows->n_src; ++k) {
        char numbers[16] = "";
        if (k > 0 && rows->types[k] == rows->types[k - 1]) { continue; }
        int last = k;
        while (last + 1 < rows->n_src && rows->types[last + 1] == rows->types[k]) { ++last; }
        if (rows->n_src > 1 && (k > 0 || last < rows->n_src - 1)) {
            snprintf(numbers, sizeof numbers, last > k ? "%d-%d: " : "%d: ", k, last);
        }
        print_types(rows->types[k], numbers, last + 1 < rows->n_src ? ";" : "");
    }
    if (rows->n_src == 0) { word("", "no source", ""); }
    end_line();
    begin_line("      ");
    for (int i = 0; i < n; ++i) {
        if (is_printed[i] || !same_types(rows, &rows[i])) { continue; }
        if (*comma != '\0') { column += printf("%s", comma); }
        word("", rows[i].name, "");
        is_printed[i] = true;
        comma = ",";
    }
    end_line();
}

int main(void) {
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    static struct row rows[GCUDA_OP_COUNT];
    static bool is_printed[GCUDA_OP_COUNT];
    int n = 0;
    for (int op = 0; op < GCUDA_OP_COUNT; ++op) {
        if (op == GCUDA_OP_NONE) { continue; }
        const char * name = gcuda_op_name((enum gcuda_op) op);
        for (size_t i = 0; name[i] && i < sizeof rows[n].name - 1; ++i) {
            rows[n].name[i] = (char) tolower((unsigned char) name[i]);
        }
        fill_row(cpu, &rows[n], ctors, N_CTORS);
        fill_row(cpu, &rows[n++], more, sizeof more / sizeof more[0]);
    }
    for (int i = 0; i < n; ++i) {
        if (!is_printed[i]) { print_group(&rows[i], n - i, &is_printed[i]); }
    }
    gcuda_backend_free(cpu);
    return 0;
}
