// examples/llm.h on a small random model that is written here: batches, sequences, steps, cancelling, states, sampling,
// failures. Results are compared with each other here, and with references in tests/llm/check.py.
#include "test.h"

#define LLM_IMPLEMENTATION
#include "../examples/llm.h"

enum {
    WINDOW = 8,
    N_EMBD = 64,
    N_HEADS = 2,
    N_KV = 1,
    HEAD = 32,
    N_FF = 48,
    N_MERGES = 3,
    N_SPECIAL = 3,
    N_VOCAB = 256 + N_MERGES + N_SPECIAL
};

// Names that no other run has; the second for changed files.
static const char * path_of(int which) {
    static char paths[2][600];
    const char * folder = getenv("TMPDIR");
    for (int i = 0; i < 2 && paths[i][0] == '\0'; ++i) {
        snprintf(paths[i], sizeof paths[i], "%s/gcuda-llm-%llx-%llx-%d.gguf", folder ? folder : "/tmp",
            (unsigned long long) gcuda_time_us(), (unsigned long long) (uintptr_t) &folder, i);
    }
    return paths[which];
}
#define model_path path_of(0)

// =====================================================================================================================
// >>model   a file as programs make them
// =====================================================================================================================
static void byte_text(int byte, char * text) { // the character that stands for a byte in byte-level vocabularies
    struct llmi_vocab v;
    memset(&v, 0, sizeof v);
    llmi_byte_chars(&v);
    text[llmi_utf8_put(v.char_of_byte[byte], text)] = '\0';
}

static void set_vocabulary(struct gcuda_gguf_context * g) {
    static char texts[N_VOCAB][24];
    static const char * names[N_VOCAB];
    static const char * const merges[N_MERGES] = { "a b", "ab c", "\xC4\xA0 x" }; // U+0120 is the blank
    static const char * const merged[N_MERGES] = { "ab", "abc", "\xC4\xA0x" };
    static const char * const special[N_SPECIAL] = { "<|im_start|>", "<|im_end|>", "<|x|>" };
    int32_t types[N_VOCAB];
    for (int i = 0; i < N_VOCAB; ++i) {
        types[i] = LLMI_NORMAL;
        if (i < 256) { byte_text(i, texts[i]); }
        if (i >= 256) { strcpy(texts[i], i < 256 + N_MERGES ? merged[i - 256] : special[i - 256 - N_MERGES]); }
        if (i >= 256 + N_MERGES) { types[i] = LLMI_CONTROL; }
        names[i] = texts[i];
    }
    CHECK_OK(gcuda_gguf_set_val_str(g, "tokenizer.ggml.model", "gpt2"));
    CHECK_OK(gcuda_gguf_set_val_str(g, "tokenizer.ggml.pre", "gpt-2"));
    CHECK_OK(gcuda_gguf_set_arr_str(g, "tokenizer.ggml.tokens", names, N_VOCAB));
    CHECK_OK(gcuda_gguf_set_arr_str(g, "tokenizer.ggml.merges", merges, N_MERGES));
    CHECK_OK(gcuda_gguf_set_arr_data(g, "tokenizer.ggml.token_type", GCUDA_GGUF_TYPE_INT32, types, N_VOCAB));
    CHECK_OK(gcuda_gguf_set_val_str(g, "tokenizer.chat_template", "<|im_start|>"));
}

static void set_keys(struct gcuda_gguf_context * g, const char * arch, uint32_t n_layers) {
    const struct {
        const char * name;
        uint32_t value;
    } rows[] = {
        { "context_length", 64 },
        { "embedding_length", N_EMBD },
        { "block_count", n_layers },
        { "feed_forward_length", N_FF },
        // llama does not read the last
        { "attention.head_count", N_HEADS },
        { "attention.head_count_kv", N_KV },
        { "attention.sliding_window", WINDOW },
    };
    char key[96];
    CHECK_OK(gcuda_gguf_set_val_str(g, "general.architecture", arch));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        snprintf(key, sizeof key, "%s.%s", arch, rows[i].name);
        CHECK_OK(gcuda_gguf_set_val_u32(g, key, rows[i].value));
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    CHECK_OK(gcuda_gguf_set_val_f32(g, key, 1e-5f));
}

static void add_weights(
    struct gcuda_context * ctx, struct rng * r, const char * name, int64_t ne0, int64_t ne1, bool is_norm) {
    struct gcuda_tensor * t = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, ne0, ne1);
    (void) gcuda_set_name(t, name);
    for (int64_t i = 0; t != NULL && i < ne0 * ne1; ++i) {
        ((float *) t->data)[i] =
            is_norm ? (float) rng_between(r, 0.5, 1.5) : (float) (rng_between(r, -2.0, 2.0) / sqrt((double) ne0));
    }
}

static void add_layer(struct gcuda_context * ctx, struct rng * r, int layer, bool is_gemma) {
    const struct {
        const char * name;
        int64_t ne0, ne1;
    } rows[] = {
        { "attn_norm", N_EMBD, 1 },
        { "attn_q", N_EMBD, N_EMBD },
        { "attn_k", N_EMBD, HEAD * N_KV },
        { "attn_v", N_EMBD, HEAD * N_KV },
        { "attn_output", N_EMBD, N_EMBD },
        { "ffn_norm", N_EMBD, 1 },
        { "ffn_gate", N_EMBD, N_FF },
        { "ffn_up", N_EMBD, N_FF },
        { "ffn_down", N_FF, N_EMBD },
        // Gemma's
        { "attn_q_norm", HEAD, 1 },
        { "attn_k_norm", HEAD, 1 },
        { "post_attention_norm", N_EMBD, 1 },
        { "post_ffw_norm", N_EMBD, 1 },
    };
    char name[64];
    for (size_t i = 0; i < sizeof rows / sizeof *rows - (is_gemma ? 0 : 4); ++i) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, rows[i].name);
        add_weights(ctx, r, name, rows[i].ne0, rows[i].ne1, rows[i].ne1 == 1);
    }
}

static void write_arch(const char * arch, uint32_t n_layers) {
    const struct gcuda_init_params params = { 0, NULL, false };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_gguf_context * g = gcuda_gguf_init_empty();
    struct rng r = rng_for("llm");
    set_keys(g, arch, n_layers);
    set_vocabulary(g);
    add_weights(ctx, &r, "token_embd.weight", N_EMBD, N_VOCAB, false);
    add_weights(ctx, &r, "output_norm.weight", N_EMBD, 1, true);
    for (uint32_t i = 0; i < n_layers; ++i) { add_layer(ctx, &r, (int) i, strcmp(arch, "gemma3") == 0); }
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t != NULL; t = gcuda_get_next_tensor(ctx, t)) {
        CHECK_OK(gcuda_gguf_add_tensor(g, t));
    }
    CHECK_OK(gcuda_gguf_write_to_file(g, model_path, false));
    gcuda_gguf_free(g);
    gcuda_free(ctx);
}

static void write_model(uint32_t n_layers) { write_arch("llama", n_layers); }

struct fixture {
    struct llm_model * m;
    struct llm_session * s;
};

// GCUDA_TEST_BACKEND: another one, on the simulated device CUDA0.
static const char * test_backend(void) {
    const char * name = getenv("GCUDA_TEST_BACKEND");
    return name != NULL && name[0] != '\0' ? name : "CPU";
}

static gcuda_status open_model(struct fixture * f, const struct llm_session_params * q) {
    struct llm_model_params p;
    memset(&p, 0, sizeof p);
    memset(f, 0, sizeof *f);
    p.backend = test_backend();
    gcuda_status st = llm_model_load(model_path, &p, &f->m);
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_session_new(f->m, q, &f->s); }
    return st;
}
static void close_model(struct fixture * f) {
    llm_session_free(f->s);
    llm_model_free(f->m);
}

static struct llm_session_params params_of(int n_chunk, int n_seqs, int n_outputs) {
    struct llm_session_params q;
    memset(&q, 0, sizeof q);
    q.n_ctx = 64;
    q.n_chunk = n_chunk;
    q.n_seqs = n_seqs;
    q.n_outputs = n_outputs;
    q.n_threads = 1;
    q.kv_type = GCUDA_TYPE_F32;
    q.kv_is_set = true;
    // else a GPU rounds products of several tokens to TF32 and an F32 cache to F16, and those of one token not
    q.exact = true;
    return q;
}

static const int32_t some_tokens[] = { 72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100, 33, 256, 257, 258, 5, 6,
    7 };
enum { N_SOME = sizeof some_tokens / sizeof *some_tokens };

// Logits of the last of n tokens in a fresh session.
static void fresh_logits(const int32_t * tokens, size_t n, int n_chunk, float * logits) {
    struct fixture f;
    const struct llm_session_params q = params_of(n_chunk, 1, 1);
    CHECK_OK(open_model(&f, &q));
    CHECK_OK(llm_eval_tokens(f.s, 0, tokens, n));
    const float * got = llm_seq_logits(f.s, 0);
    CHECK(got != NULL);
    if (got != NULL) { memcpy(logits, got, N_VOCAB * sizeof(float)); }
    close_model(&f);
}

static float distance(const float * a, const float * b) {
    float most = a == NULL || b == NULL ? INFINITY : 0.0f;
    for (int i = 0; a != NULL && b != NULL && i < N_VOCAB; ++i) { most = fmaxf(most, fabsf(a[i] - b[i])); }
    return most;
}

// =====================================================================================================================
// >>text
// =====================================================================================================================
TEST(llm_tokens) {
    struct fixture f;
    int32_t tokens[32];
    char text[64];
    size_t n = 0, n_text = 0;
    write_model(2);
    CHECK_OK(open_model(&f, NULL));
    CHECK_OK(llm_tokenize(f.m, "abc x<|x|>", 10, LLM_PARSE_SPECIAL, tokens, 32, &n));
    CHECK(n == 3 && tokens[0] == 257 && tokens[1] == 258 && tokens[2] == 261);
    CHECK_OK(llm_tokenize(f.m, "abc x<|x|>", 10, 0, tokens, 32, &n)); // a stranger's text
    CHECK(n == 2 + 5 && tokens[2] == '<');
    CHECK_OK(llm_detokenize(f.m, tokens, n, false, text, sizeof text, &n_text));
    CHECK(n_text == 10 && memcmp(text, "abc x<|x|>", 10) == 0);
    CHECK_OK(llm_tokenize(f.m, "abc x", 5, 0, NULL, 0, &n));
    CHECK_EQ_I(n, 2);
    CHECK_EQ_I(llm_tokenize(f.m, "abc x", 5, 0, tokens, 1, &n), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "2 wanted, there is room for 1");
    CHECK(llm_token_is_end(f.m, 260) && !llm_token_is_end(f.m, 259) && !llm_token_is_end(f.m, -1) &&
          !llm_token_is_end(f.m, N_VOCAB));
    tokens[0] = N_VOCAB;
    CHECK_EQ_I(llm_detokenize(f.m, tokens, 1, false, text, sizeof text, &n_text), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(strlen(llm_token_piece(f.m, N_VOCAB, &n)), 0);
    close_model(&f);
}

// Bytes of any kind, pieces of characters and of special tokens: they come back byte for byte, a stranger's text holds
// no control token.
TEST(llm_random_texts) {
    static const char * const parts[] = { "abc", " x", "<|im_end|>", "<|im_", "\xE2\x82", "\xF0\x9F\x98\x80", "'s",
        "\n\n ", "   ", "12", "\xC3\xA9", "\xFF", "\xCC\x81" };
    struct fixture f;
    struct rng r = rng_for("texts");
    char text[256], back[2560]; // a control token's name is longer than its byte
    int32_t tokens[256];
    write_model(1);
    CHECK_OK(open_model(&f, NULL));
    for (int i = 0; i < 4000; ++i) {
        size_t n = 0, n_tokens = 0, n_back = 0;
        for (int64_t left = rng_below(&r, 12); left >= 0; --left) {
            const char * part = parts[rng_below(&r, (int64_t) (sizeof parts / sizeof *parts))];
            const char byte = (char) rng_below(&r, 256);
            const bool is_byte = rng_below(&r, 2) == 0;
            memcpy(text + n, is_byte ? &byte : part, is_byte ? 1 : strlen(part));
            n += is_byte ? 1 : strlen(part);
        }
        for (int flags = 0; flags <= LLM_PARSE_SPECIAL; flags += LLM_PARSE_SPECIAL) {
            CHECK_OK(llm_tokenize(f.m, text, n, flags, tokens, 256, &n_tokens));
            CHECK_OK(llm_detokenize(f.m, tokens, n_tokens, true, back, sizeof back, &n_back));
            CHECK(n_back == n && memcmp(text, back, n) == 0);
            for (size_t k = 0; flags == 0 && k < n_tokens; ++k) { CHECK(!llm_token_is_special(f.m, tokens[k])); }
        }
        CHECK(llm_utf8_whole(text, n) <= n && llm_utf8_whole(text, n) + 3 >= n);
        const struct llm_message message = { "user", text };
        size_t n_control = 0;
        text[n < 200 ? n : 200] = '\0'; // the text ends at a zero byte, if it has one
        CHECK_OK(llm_chat_tokenize(f.m, &message, 1, true, tokens, 256, &n_tokens));
        for (size_t k = 0; k < n_tokens; ++k) { n_control += llm_token_is_special(f.m, tokens[k]); }
        CHECK_EQ_I(n_control, 3); // those of the template
    }
    close_model(&f);
}

// Merges through texts that are no token: the tables grow for them, and what stays such a text is written as its
// characters.
TEST(llm_merges_of_no_tokens) {
    enum { N_LETTERS = 26, N_PAIRS = N_LETTERS * N_LETTERS, N_TOKENS = 256 + 1, N_LONG = 500 };
    static char texts[256][8], lines[N_PAIRS + 2][N_LONG + 4];
    static const char *tokens[N_TOKENS], *merges[N_PAIRS + 2];
    struct llm_model m;
    struct gcuda_gguf_context * g = gcuda_gguf_init_empty();
    int32_t got[64];
    size_t n = 0;
    memset(&m, 0, sizeof m);
    for (int i = 0; i < 256; ++i) {
        byte_text(i, texts[i]);
        tokens[i] = texts[i];
    }
    tokens[256] = "abcd";
    for (int i = 0; i < N_PAIRS; ++i) {
        snprintf(lines[i], sizeof lines[i], "%c %c", 'a' + i / N_LETTERS, 'a' + i % N_LETTERS);
    }
    strcpy(lines[N_PAIRS], "ab cd");
    memset(lines[N_PAIRS + 1], 'q', N_LONG);
    lines[N_PAIRS + 1][N_LONG / 2] = ' ';
    for (int i = 0; i < N_PAIRS + 2; ++i) { merges[i] = lines[i]; }
    CHECK_OK(gcuda_gguf_set_val_str(g, "tokenizer.ggml.model", "gpt2"));
    CHECK_OK(gcuda_gguf_set_val_str(g, "tokenizer.ggml.pre", "gpt-2"));
    CHECK_OK(gcuda_gguf_set_arr_str(g, "tokenizer.ggml.tokens", tokens, N_TOKENS));
    CHECK_OK(gcuda_gguf_set_arr_str(g, "tokenizer.ggml.merges", merges, N_PAIRS + 2));
    m.file.g = g;
    m.arena = llmi_arena(0);
    CHECK_OK(llmi_vocab_load(&m.vocab, &m.file, m.arena));
    CHECK_EQ_I(m.vocab.n_symbols, N_TOKENS + N_PAIRS + 3); // the long line is three texts
    CHECK_OK(llm_tokenize(&m, "abcdzabxy", 9, 0, got, 64, &n));
    // by rank: ab, cd, then za (later than both), bx is no neighbour any more; xy stays
    CHECK(n == 6 && got[0] == 256 && got[1] == 'z' && got[2] == 'a' && got[3] == 'b' && got[4] == 'x' && got[5] == 'y');
    for (int32_t i = 0; i < m.vocab.n_symbols; ++i) { // each text is found, once
        const uint32_t at = m.vocab.text_at[i];
        CHECK_EQ_I(llmi_find(&m.vocab, m.vocab.text + at, m.vocab.text_at[i + 1] - at), i);
    }
    gcuda_free(m.arena);
    gcuda_gguf_free(g);
}

// The written model with another value of a key.
static gcuda_status load_changed(gcuda_status (*change)(struct gcuda_gguf_context * g, int which), int which,
    gcuda_log_callback log, void * user, struct llm_model ** m) {
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    const struct gcuda_gguf_init_params params = { false, NULL, &st, false, false };
    struct llm_model_params p;
    struct gcuda_gguf_context * g = gcuda_gguf_init_from_file(model_path, params);
    memset(&p, 0, sizeof p);
    p.backend = "CPU";
    p.log = log;
    p.log_user = user;
    CHECK_OK(change(g, which));
    CHECK_OK(gcuda_gguf_write_to_file(g, path_of(1), false));
    gcuda_gguf_free(g);
    st = llm_model_load(path_of(1), &p, m);
    remove(path_of(1));
    return st;
}

static gcuda_status set_types_of_marks(struct gcuda_gguf_context * g, int type) {
    int32_t types[N_VOCAB];
    for (int i = 0; i < N_VOCAB; ++i) { types[i] = i < 256 + N_MERGES ? LLMI_NORMAL : type; }
    return gcuda_gguf_set_arr_data(g, "tokenizer.ggml.token_type", GCUDA_GGUF_TYPE_INT32, types, N_VOCAB);
}

static void count_warnings(enum gcuda_log_level level, const char * text, void * user) {
    (void) level;
    *(int *) user += strstr(text, "is a mark of the chat template") != NULL;
}

// Marks of the chat template are control tokens whatever the file says: the template becomes them, and a message that
// has their text does not.
TEST(llm_marks_are_control_tokens) {
    static const int types[] = { LLMI_CONTROL, LLMI_USER_DEFINED, LLMI_NORMAL, LLMI_UNUSED };
    static const struct llm_message messages[] = { { "user", "a<|im_end|><|im_start|>system" }, { "user", "a" } };
    write_model(1);
    for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
        struct llm_model * m = NULL;
        int n_warnings = 0;
        CHECK_OK(load_changed(set_types_of_marks, types[i], count_warnings, &n_warnings, &m));
        REQUIRE(m != NULL);
        CHECK_MSG((n_warnings > 0) == (types[i] != LLMI_CONTROL), "type %d: %d warnings", types[i], n_warnings);
        for (int k = 0; k < 2; ++k) {
            int32_t tokens[64];
            size_t n = 0, n_control = 0;
            CHECK_OK(llm_chat_tokenize(m, &messages[k], 1, true, tokens, 64, &n));
            for (size_t t = 0; t < n; ++t) { n_control += tokens[t] == 259 || tokens[t] == 260; }
            CHECK_MSG(n_control == 3, "type %d, message %d: %zu control tokens", types[i], k, n_control);
        }
        CHECK(llm_token_is_end(m, 260) && llm_token_is_special(m, 259));
        llm_model_free(m);
    }
}

static gcuda_status load_vocabulary(struct llm_model * m, const char * kind, const char * const * tokens,
    const int32_t * types, const float * scores, uint64_t n, const char * merge) {
    memset(m, 0, sizeof *m);
    m->file.g = gcuda_gguf_init_empty();
    m->arena = llmi_arena(0);
    CHECK_OK(gcuda_gguf_set_val_str(m->file.g, "tokenizer.ggml.model", kind));
    CHECK_OK(gcuda_gguf_set_val_str(m->file.g, "tokenizer.ggml.pre", "llama-bpe"));
    CHECK_OK(gcuda_gguf_set_arr_str(m->file.g, "tokenizer.ggml.tokens", tokens, n));
    CHECK_OK(gcuda_gguf_set_arr_str(m->file.g, "tokenizer.ggml.merges", &merge, 1));
    CHECK_OK(gcuda_gguf_set_arr_data(m->file.g, "tokenizer.ggml.scores", GCUDA_GGUF_TYPE_FLOAT32, scores, n));
    CHECK_OK(gcuda_gguf_set_arr_data(m->file.g, "tokenizer.ggml.token_type", GCUDA_GGUF_TYPE_INT32, types, n));
    return llmi_vocab_load(&m->vocab, &m->file, m->arena);
}

// Parts of a control token's name that are tokens do not merge to it, nor does a word of the same text become it.
TEST(llm_merging_makes_no_control_token) {
    enum { N = 9 };
    static const char * const tokens[N] = { "<unk>", "<s>", "</s>", "</", "s>", "<0x41>", "<0x4", "1>", "stop" };
    static const int32_t types[N] = { LLMI_UNKNOWN, LLMI_CONTROL, LLMI_CONTROL, LLMI_NORMAL, LLMI_NORMAL, LLMI_BYTE,
        LLMI_NORMAL, LLMI_NORMAL, LLMI_CONTROL };
    static const float scores[N] = { 0.0f };
    static const char * const kinds[] = { "llama", "gpt2", "bert" };
    static const char text[] = "</s> <s> <0x41> stop";
    for (int k = 0; k < 3; ++k) {
        static char bytes[256][8];
        const char * all[N + 256];
        int32_t all_types[N + 256], got[128];
        float all_scores[N + 256];
        struct llm_model m;
        size_t n = 0;
        for (int i = 0; i < N + 256; ++i) {
            byte_text(i < N ? 0 : i - N, bytes[i < N ? 0 : i - N]);
            all[i] = i < N ? tokens[i] : bytes[i - N];
            all_types[i] = i < N ? types[i] : LLMI_NORMAL;
            all_scores[i] = i < N ? scores[i] : -1.0f;
        }
        CHECK_OK(load_vocabulary(&m, kinds[k], all, all_types, all_scores, N + 256, "</ s>"));
        CHECK_OK(llm_tokenize(&m, text, sizeof text - 1, 0, got, 128, &n));
        for (size_t i = 0; i < n; ++i) {
            const int type = m.vocab.type[got[i]];
            CHECK_MSG(type == LLMI_NORMAL || (k != 1 && type == LLMI_UNKNOWN), "%s: token %d '%s'", kinds[k], got[i],
                got[i] < N ? tokens[got[i]] : "a byte");
        }
        CHECK(n > 0);
        gcuda_free(m.arena);
        gcuda_gguf_free(m.file.g);
    }
}

// A message at the beginning of a chat that begins with the name of bos takes the place of no bos.
TEST(llm_bos_before_a_message) {
    struct llm_model m;
    enum { N = 2 };
    static const char * const tokens[N] = { "<s>", "x" };
    static const int32_t types[N] = { LLMI_CONTROL, LLMI_NORMAL };
    static const float scores[N] = { 0.0f, 0.0f };
    const struct llm_message messages[] = { { "assistant", "<s>x" }, { "assistant", "x" } };
    CHECK_OK(load_vocabulary(&m, "llama", tokens, types, scores, N, "x x"));
    m.vocab.bos = 0;
    m.vocab.unknown = 1;
    m.chat = llmi_template_of("mistral-v7-tekken");
    for (int i = 0; i < 2; ++i) {
        int32_t got[32];
        size_t n = 0;
        CHECK_OK(llm_chat_tokenize(&m, &messages[i], 1, true, got, 32, &n));
        CHECK_MSG(n > 0 && got[0] == 0, "message %d: %d first", i, n > 0 ? got[0] : -1);
    }
    gcuda_free(m.arena);
    gcuda_gguf_free(m.file.g);
}

TEST(llm_dates) {
    struct rng r = rng_for("dates");
    for (int i = 0; i < 3000; ++i) {
        char got[LLMI_DATE], want[LLMI_DATE];
        const int64_t day = i < 2000 ? i : rng_below(&r, 1500000);
        const time_t t = (time_t) (day * 86400 + rng_below(&r, 86400));
        const struct tm * utc = gmtime(&t);
        REQUIRE(utc != NULL && strftime(want, sizeof want, "%Y-%m-%d", utc) > 0);
        llmi_date((int64_t) t, got);
        CHECK_MSG(strcmp(got, want) == 0, "%lld: %s, want %s", (long long) t, got, want);
    }
}

TEST(llm_chat_templates) {
    static const struct {
        const char *text, *name;
    } rows[] = {
        { "{{ '<|im_start|>' + role }}", "chatml" },
        { "x<|im_start|>y<|im_sep|>", "phi4" },
        { "chatml", "chatml" },
        { "<|assistant|> <|end|>", "phi3" },
        { "<start_of_turn>", "gemma" },
        { "<|start_header_id|><|end_header_id|>", "llama3" },
        { "<|start|><|channel|>", "gpt-oss" },
        { "'[SYSTEM_PROMPT] ' '[INST] ' '[/INST]'", "mistral-v7" },
        { "'[SYSTEM_PROMPT]' '[INST]' '[/INST]'", "mistral-v7-tekken" },
        { "mistral-v7-tekken", "mistral-v7-tekken" },
        { "' [INST] ' + system_message + ' [/INST]'", "mistral-v1" },
        { "'[INST] ' + content + ' [/INST]'", "mistral-7b-v0.2" },
        { "'[INST] ' + content + '[/INST]'", "mistral-v3" },
        { "[AVAILABLE_TOOLS] \"[INST]\" \"[/INST]\"", "mistral-v3-tekken" },
        { "\"[INST]\" + system_message; \"[/INST]\"", "mistral-v3-tekken" },
        { "[INST] <<SYS>> [/INST]", NULL },
        { "[INST]", NULL },
        { "", NULL },
        { "{% for m in messages %}", NULL },
    };
    size_t n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        const struct llmi_template * t = llmi_template_of(rows[i].text);
        CHECK_MSG((t == NULL) == (rows[i].name == NULL) && (t == NULL || strcmp(t->name, rows[i].name) == 0), "%s: %s",
            rows[i].text, t ? t->name : "none");
    }
    CHECK(llmi_template_of(NULL) == NULL);
    const char * preset = llmi_default_system("'<|im_start|>system\\nBe kind.<|im_end|>\\n'", &n);
    CHECK(preset != NULL && n == 8 && memcmp(preset, "Be kind.", 8) == 0);
    CHECK(llmi_default_system("<|im_start|>system\n' + content + '<|im_end|>", &n) == NULL);
    CHECK(llmi_default_system("<|im_start|>system", &n) == NULL && llmi_default_system("", &n) == NULL);
}

TEST(llm_utf8_tails) {
    static const struct {
        const char * text;
        size_t n;
    } rows[] = {
        { "", 0 },
        { "a", 1 },
        { "\xC3", 0 },
        { "\xC3\xA9", 2 },
        { "a\xE2\x82", 1 },
        { "a\xE2\x82\xAC", 4 },
        { "\xF0\x9F\x98", 0 },
        { "\xF0\x9F\x98\x80", 4 },
        { "\xFF", 1 },
        { "\x80\x80", 2 },
        { "\xE0\x80", 2 },
        { "\xED\xA0", 2 },
        { "\xF4\x90", 2 },
        { "a\xC3(", 3 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        CHECK_EQ_I(llm_utf8_whole(rows[i].text, strlen(rows[i].text)), rows[i].n);
    }
}

// =====================================================================================================================
// >>batches
// =====================================================================================================================
TEST(llm_splits_of_a_batch) {
    float whole[N_VOCAB], logits[N_VOCAB];
    write_model(2);
    fresh_logits(some_tokens, N_SOME, N_SOME, whole);
    for (int n_chunk = 1; n_chunk < N_SOME; n_chunk += 4) {
        fresh_logits(some_tokens, N_SOME, n_chunk, logits);
        CHECK_MSG(distance(whole, logits) < 1e-4f, "chunks of %d: %g", n_chunk, (double) distance(whole, logits));
    }
}

TEST(llm_sequences_beside_each_other) {
    struct fixture f;
    const struct llm_session_params q = params_of(7, 3, 4);
    float alone[N_VOCAB], other[N_VOCAB];
    int32_t tokens[2 * N_SOME], seqs[2 * N_SOME];
    size_t n = 0;
    write_model(2);
    fresh_logits(some_tokens, N_SOME, N_SOME, alone);
    fresh_logits(some_tokens + 3, 9, N_SOME, other);
    for (int i = 0; i < N_SOME; ++i) { // sequence 2 has the whole, 0 a part of it
        tokens[n] = some_tokens[i];
        seqs[n++] = 2;
        if (i < 3 || i >= 12) { continue; }
        tokens[n] = some_tokens[i];
        seqs[n++] = 0;
    }
    CHECK_OK(open_model(&f, &q));
    const struct llm_batch batch = { tokens, seqs, NULL, n };
    CHECK_OK(llm_eval(f.s, &batch));
    CHECK_EQ_I(llm_n_outputs(f.s), 2);
    CHECK(distance(llm_seq_logits(f.s, 2), alone) < 1e-4f && distance(llm_seq_logits(f.s, 0), other) < 1e-4f &&
          llm_seq_logits(f.s, 1) == NULL);
    CHECK(llm_seq_length(f.s, 2) == N_SOME && llm_seq_length(f.s, 0) == 9 &&
          llm_seq_token(f.s, 0, 8) == some_tokens[11] && llm_seq_token(f.s, 0, 9) == -1);
    close_model(&f);
}

TEST(llm_copies_and_prefixes) {
    struct fixture f;
    const struct llm_session_params q = params_of(8, 2, 2);
    float whole[N_VOCAB];
    size_t n_kept = 0;
    write_model(2);
    fresh_logits(some_tokens, N_SOME, N_SOME, whole);
    CHECK_OK(open_model(&f, &q));
    CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens, 10));
    CHECK_OK(llm_seq_copy(f.s, 0, 1));
    CHECK_EQ_I(llm_n_free(f.s), 54);
    CHECK_OK(llm_eval_tokens(f.s, 1, some_tokens + 10, N_SOME - 10));
    CHECK(distance(llm_seq_logits(f.s, 1), whole) < 1e-4f);
    CHECK_OK(llm_seq_truncate(f.s, 0, 0));
    CHECK_EQ_I(llm_n_free(f.s), 64 - N_SOME);
    CHECK_OK(llm_seq_keep_prefix(f.s, 1, some_tokens, N_SOME, &n_kept)); // one is computed anew
    CHECK(n_kept == N_SOME - 1 && llm_seq_length(f.s, 1) == N_SOME - 1);
    CHECK_OK(llm_eval_tokens(f.s, 1, some_tokens + n_kept, 1));
    CHECK(distance(llm_seq_logits(f.s, 1), whole) < 1e-4f);
    int32_t changed[N_SOME];
    memcpy(changed, some_tokens, sizeof changed);
    changed[4] = 1;
    CHECK_OK(llm_seq_keep_prefix(f.s, 1, changed, N_SOME, &n_kept));
    CHECK(n_kept == 4 && llm_n_free(f.s) == 60);
    close_model(&f);
}

// In a model of one layer the keys and values of a token depend on nothing else: a shift gives what a fresh session
// does.
TEST(llm_shift_of_a_context) {
    struct fixture f;
    const struct llm_session_params q = params_of(8, 2, 1);
    float want[N_VOCAB];
    int32_t left[N_SOME];
    write_model(1);
    memcpy(left, some_tokens, 3 * sizeof *left);
    memcpy(left + 3, some_tokens + 8, (N_SOME - 8) * sizeof *left);
    fresh_logits(left, N_SOME - 5, 8, want);
    CHECK_OK(open_model(&f, &q));
    CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens, N_SOME - 1));
    CHECK_OK(llm_seq_shift(f.s, 0, 3, 5));
    CHECK(llm_seq_length(f.s, 0) == N_SOME - 6 && llm_seq_token(f.s, 0, 3) == some_tokens[8] &&
          llm_n_free(f.s) == 64 - N_SOME + 6);
    CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens + N_SOME - 1, 1));
    CHECK_MSG(distance(llm_seq_logits(f.s, 0), want) < 1e-4f, "%g", (double) distance(llm_seq_logits(f.s, 0), want));
    CHECK_EQ_I(llm_seq_shift(f.s, 0, 3, -1), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(llm_seq_shift(f.s, 0, 3, 0), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(llm_seq_shift(f.s, 0, 3, N_SOME), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_OK(llm_seq_copy(f.s, 0, 1));
    CHECK_EQ_I(llm_seq_shift(f.s, 0, 3, 2), GCUDA_STATUS_UNSUPPORTED);
    close_model(&f);
}

static bool stops_slowly(void * user, float share) { // as if each question came 10 ms after the last
    (void) share;
    const int64_t end_us = gcuda_time_us() + 11000;
    while (gcuda_time_us() < end_us) {}
    return --*(int *) user != 0;
}
static bool stops(void * user) { return !stops_slowly(user, 0.0f); }

// A shift is whole or did not happen. Progress does not stop it. If the device fails in it, the positions that it moves
// are gone, and evaluated again they give what they should.
TEST(llm_shift_is_whole) {
    float want[N_VOCAB];
    const bool is_cpu = strcmp(test_backend(), "CPU") == 0;
    write_model(3);
    for (int n = 0; n < (is_cpu ? 12 : 2); ++n) { // the n-th question is answered with stop; from 6 on by the device
        struct fixture f;
        struct llm_session_params q = params_of(8, 1, 1);
        int left = -1;
        q.progress = stops_slowly;
        q.progress_user = &left;
        CHECK_OK(open_model(&f, &q));
        CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens, N_SOME - 1));
        if (n >= 6) { CHECK_OK(gcuda_backend_cpu_set_abort_callback(f.s->backends[0], stops, &left)); }
        left = n < 6 ? n : n - 5;
        const gcuda_status st = llm_seq_shift(f.s, 0, 3, 5);
        left = -1;
        CHECK_EQ_I(st, n < 6 ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_ABORTED);
        CHECK_EQ_I(llm_seq_length(f.s, 0), n < 6 ? N_SOME - 6 : 8);
        if (n >= 6) { // the remaining positions are unchanged
            CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens + 8, N_SOME - 9));
            CHECK_OK(llm_seq_shift(f.s, 0, 3, 5));
        }
        CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens + N_SOME - 1, 1));
        if (n == 0) { memcpy(want, llm_seq_logits(f.s, 0), sizeof want); }
        CHECK_MSG(distance(llm_seq_logits(f.s, 0), want) < 1e-4f, "%d: %g", n,
            (double) distance(llm_seq_logits(f.s, 0), want));
        close_model(&f);
    }
}

// Layers with a window have a small cache when chunks are short: its results are those of a cache that holds
// everything.
TEST(llm_windows) {
    enum { N = 560 };
    struct fixture f;
    struct llm_session_params q = params_of(600, 2, 1);
    int32_t tokens[N];
    float want[N_VOCAB];
    size_t n_kept = 1, n_state = 0;
    write_arch("gemma3", 7);
    for (int i = 0; i < N; ++i) { tokens[i] = (i * 37 + i / 7) % 256; }
    q.n_ctx = 600;
    CHECK_OK(open_model(&f, &q));
    CHECK_EQ_I(f.s->n_caches, 1);
    CHECK_OK(llm_eval_tokens(f.s, 0, tokens, N));
    memcpy(want, llm_seq_logits(f.s, 0), sizeof want);
    close_model(&f);
    q.n_chunk = 50;
    CHECK_OK(open_model(&f, &q));
    CHECK_EQ_I(f.s->n_caches, 2);
    CHECK_OK(llm_eval_tokens(f.s, 0, tokens, 300));
    CHECK_OK(llm_seq_copy(f.s, 0, 1)); // a shared beginning, which both go on from
    CHECK_OK(llm_eval_tokens(f.s, 1, tokens, 7));
    CHECK_OK(llm_eval_tokens(f.s, 0, tokens + 300, N - 301));
    CHECK_OK(llm_eval_tokens(f.s, 0, tokens + N - 1, 1));
    CHECK_MSG(distance(llm_seq_logits(f.s, 0), want) < 1e-4f, "%g", (double) distance(llm_seq_logits(f.s, 0), want));
    CHECK_OK(llm_seq_truncate(f.s, 0, N - 20)); // a little way back
    CHECK_OK(llm_eval_tokens(f.s, 0, tokens + N - 20, 20));
    CHECK(distance(llm_seq_logits(f.s, 0), want) < 1e-4f);
    CHECK_EQ_I(llm_seq_truncate(f.s, 0, 100), GCUDA_STATUS_UNSUPPORTED);
    CHECK(llm_seq_length(f.s, 0) == N && llm_seq_shift(f.s, 0, 3, 5) == GCUDA_STATUS_UNSUPPORTED);
    CHECK_OK(llm_state_save(f.s, NULL, 0, &n_state));
    char * state = (char *) malloc(n_state);
    REQUIRE(state != NULL);
    CHECK_OK(llm_seq_truncate(f.s, 0, N - 1));
    CHECK_OK(llm_state_save(f.s, state, n_state, &n_state));
    CHECK_OK(llm_seq_truncate(f.s, 0, 0));
    CHECK_OK(llm_eval_tokens(f.s, 0, tokens, 60)); // overwrites the cache
    CHECK_OK(llm_state_restore(f.s, state, n_state));
    CHECK_OK(llm_eval_tokens(f.s, 0, tokens + N - 1, 1));
    CHECK(distance(llm_seq_logits(f.s, 0), want) < 1e-4f);
    free(state);
    tokens[90] ^= 1;
    CHECK_OK(llm_seq_keep_prefix(f.s, 0, tokens, N, &n_kept)); // too far back: from the beginning
    CHECK(n_kept == 0 && llm_seq_length(f.s, 0) == 0);
    close_model(&f);
}

// Token by token over the steps in which graphs grow, and back: what one evaluation of the whole says, and the graph
// stays the same one.
TEST(llm_graphs_grow) {
    enum { N = LLMI_KV_STEP + 60, N_FIRST = LLMI_KV_STEP - 6 };
    static const char * const archs[] = { "llama", "gemma3" };
    for (int a = 0; a < 2; ++a) {
        struct fixture f;
        struct llm_session_params q = params_of(N, 1, 1);
        int32_t tokens[N];
        float whole[N_VOCAB], part[N_VOCAB];
        write_arch(archs[a], a == 0 ? 2 : 7);
        for (int i = 0; i < N; ++i) { tokens[i] = (i * 37 + i / 7) % 256; }
        q.n_ctx = 2 * LLMI_KV_STEP;
        CHECK_OK(open_model(&f, &q));
        CHECK_OK(llm_eval_tokens(f.s, 0, tokens, N_FIRST + 12));
        memcpy(part, llm_seq_logits(f.s, 0), sizeof part);
        CHECK_OK(llm_seq_truncate(f.s, 0, 0));
        CHECK_OK(llm_eval_tokens(f.s, 0, tokens, N));
        memcpy(whole, llm_seq_logits(f.s, 0), sizeof whole);
        close_model(&f);
        q.n_chunk = 32; // a smaller cache for windows
        CHECK_OK(open_model(&f, &q));
        CHECK_OK(llm_eval_tokens(f.s, 0, tokens, N_FIRST - 1));
        CHECK_OK(llm_eval_tokens(f.s, 0, tokens + N_FIRST - 1, 1));
        (void) gcuda_set_name(f.s->result, "made once"); // a graph that is built again loses it
        const int32_t n_kv = f.s->build.key.n_kv[0];
        for (int round = 0; round < 2; ++round) { // the second after going back: the graph shrinks, and grows again
            for (int i = N_FIRST; i < N; ++i) {
                CHECK_OK(llm_eval_tokens(f.s, 0, tokens + i, 1));
                if (i == N_FIRST + 11) {
                    CHECK_MSG(distance(llm_seq_logits(f.s, 0), part) < 1e-4f, "%s: %g", archs[a],
                        (double) distance(llm_seq_logits(f.s, 0), part));
                }
            }
            CHECK_MSG(distance(llm_seq_logits(f.s, 0), whole) < 1e-4f, "%s: %g", archs[a],
                (double) distance(llm_seq_logits(f.s, 0), whole));
            CHECK(strcmp(f.s->result->name, "made once") == 0 && f.s->build.key.n_kv[0] == n_kv + LLMI_KV_STEP);
            if (f.s->n_caches == 2) { break; } // a window cannot go back so far
            CHECK_OK(llm_seq_truncate(f.s, 0, N_FIRST));
        }
        close_model(&f);
    }
}

static double slower(void) { // times are judged more mildly
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 20.0;
#else
    return getenv("GCUDA_TEST_EMULATED") != NULL ? 20.0 : 1.0;
#endif
}

// Host time per token of a model with 32 layers: usual tokens, and the one of each LLMI_KV_STEP with which the graph
// grows. Launching and computing are not counted.
TEST(llm_host_time_per_token) {
    enum { N_LAYERS = 32, N_TOKENS = 8, GROWS_AT = 6, N_ROUNDS = 5, MOST_US = 30 };
    struct fixture f;
    struct llm_sampler sampler;
    struct llm_session_params q = params_of(64, 1, 1);
    double usual_us = INFINITY, growth_us = INFINITY;
    int32_t token = 0, seq = 0;
    const struct llm_batch batch = { &token, &seq, NULL, 1 };
    const bool is_cpu = strcmp(test_backend(), "CPU") == 0; // a simulated device takes a second for a token
    write_model(N_LAYERS);
    q.n_ctx = 2 * LLMI_KV_STEP;
    q.n_best = 1;
    CHECK_OK(open_model(&f, &q));
    CHECK_OK(llm_sampler_init(&sampler, NULL));
    for (int round = 0; round < (is_cpu ? N_ROUNDS : 1); ++round) {
        CHECK_OK(llm_seq_truncate(f.s, 0, 0));
        // not computed: zeros
        while (llm_seq_length(f.s, 0) < LLMI_KV_STEP - GROWS_AT - 1) { (void) llmi_cells_take(&f.s->cells[0], 0, 1); }
        CHECK_OK(llm_eval_tokens(f.s, 0, &token, 1)); // builds the graph
        for (int i = 0; i < N_TOKENS; ++i) {
            bool is_done = false;
            const clock_t begin = clock(); // processor time: what other programs take is not counted
            CHECK_OK(llm_sample(f.s, 0, &sampler, &token));
            CHECK_OK(llm_submit(f.s, &batch));
            CHECK_OK(llmi_chunk_begin(f.s, false));
            const double us = 1e6 * (double) (clock() - begin) / CLOCKS_PER_SEC;
            usual_us = i == GROWS_AT ? usual_us : fmin(usual_us, us);
            growth_us = i == GROWS_AT ? fmin(growth_us, us) : growth_us;
            CHECK_EQ_I(f.s->build.key.n_kv[0], i < GROWS_AT ? LLMI_KV_STEP : 2 * LLMI_KV_STEP);
            if (f.s->event != NULL) { CHECK_OK(llmi_start_device(f.s)); }
            CHECK_OK(llm_poll(f.s, 0, &is_done));
            CHECK(is_done);
        }
    }
    close_model(&f);
    const double us = usual_us + growth_us / LLMI_KV_STEP;
    printf("  %.1f us of the host a token: usually %.0f us, %.0f us when the graph grows\n", us, usual_us, growth_us);
    CHECK_MSG(us <= MOST_US * slower(), "%.1f us of the host a token, at most %d are wanted", us, (int) MOST_US);
}

// Rotated keys and values of 4 bits: the rotation undoes itself, in F32 exactly; a shift turns them back before it
// moves them.
TEST(llm_rotated_cache) {
    struct fixture f;
    struct llm_session_params q = params_of(8, 1, 1);
    float want[N_VOCAB], turned[N_VOCAB];
    int32_t left[N_SOME];
    write_model(1);
    fresh_logits(some_tokens, N_SOME, 8, want);
    CHECK_OK(open_model(&f, &q)); // an F32 cache, rotated
    struct gcuda_context * ctx = f.s->cache[0];
    f.s->cache[0] = NULL;
    CHECK_OK(llmi_make_rotation(f.s));
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(f.s->cache[0], f.s->backends[0]);
    CHECK_OK(llmi_set_rotation(f.s));
    CHECK_EQ_I(f.s->build.rotation->ne[0], HEAD);
    CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens, N_SOME));
    memcpy(turned, llm_seq_logits(f.s, 0), sizeof turned);
    CHECK_MSG(distance(turned, want) < 1e-4f, "%g", (double) distance(turned, want));
    memcpy(left, some_tokens, 3 * sizeof *left);
    memcpy(left + 3, some_tokens + 8, (N_SOME - 8) * sizeof *left);
    fresh_logits(left, N_SOME - 5, 8, want);
    CHECK_OK(llm_seq_truncate(f.s, 0, N_SOME - 1));
    CHECK_OK(llm_seq_shift(f.s, 0, 3, 5));
    CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens + N_SOME - 1, 1));
    CHECK_MSG(
        distance(llm_seq_logits(f.s, 0), want) < 1e-4f, "shifted: %g", (double) distance(llm_seq_logits(f.s, 0), want));
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
    close_model(&f);
    q.kv_type = GCUDA_TYPE_Q4_0;
    double ab = 0.0, aa = 0.0, bb = 0.0;
    CHECK_OK(open_model(&f, &q));
    CHECK(f.s->build.rotation != NULL);
    CHECK_OK(llm_eval_tokens(f.s, 0, left, N_SOME - 5));
    for (int i = 0; i < N_VOCAB; ++i) {
        const double a = (double) llm_seq_logits(f.s, 0)[i], b = (double) want[i];
        ab += a * b, aa += a * a, bb += b * b;
    }
    CHECK_MSG(ab >= 0.98 * sqrt(aa * bb) && ab < (1.0 - 1e-9) * sqrt(aa * bb), "cosine %.9f", ab / sqrt(aa * bb));
    close_model(&f);
}

TEST(llm_refuses_bad_batches) {
    struct fixture f;
    const struct llm_session_params q = params_of(8, 2, 1);
    int32_t tokens[65] = { 0 };
    bool both[2] = { true, true };
    write_model(2);
    CHECK_OK(open_model(&f, &q));
    CHECK_EQ_I(llm_eval_tokens(f.s, 0, tokens, 0), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(llm_eval_tokens(f.s, 2, tokens, 1), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(llm_eval_tokens(f.s, -1, tokens, 1), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(llm_eval_tokens(f.s, 0, tokens, 65), GCUDA_STATUS_UNSUPPORTED);
    CHECK_HAS(gcuda_last_error(), "65 tokens do not fit: 64 of the context's 64 are free");
    tokens[1] = N_VOCAB;
    CHECK_EQ_I(llm_eval_tokens(f.s, 0, tokens, 2), GCUDA_STATUS_INVALID_ARGUMENT);
    tokens[1] = 0;
    const struct llm_batch batch = { tokens, NULL, both, 2 };
    CHECK_EQ_I(llm_eval(f.s, &batch), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(llm_n_free(f.s), 64);
    CHECK(llm_seq_logits(f.s, 0) == NULL && llm_logits(f.s, 0) == NULL && llm_logits(f.s, -1) == NULL);
    CHECK_OK(llm_eval_tokens(f.s, 0, tokens, 64)); // to the last cell
    CHECK_EQ_I(llm_eval_tokens(f.s, 0, tokens, 1), GCUDA_STATUS_UNSUPPORTED);
    close_model(&f);
}

// More outputs than a chunk has tokens, with all logits and with some of them.
TEST(llm_more_outputs_than_a_chunk) {
    static const int n_bests[] = { 0, 1, 3 };
    int32_t tokens[6], seqs[6];
    for (int i = 0; i < 6; ++i) {
        tokens[i] = 10 + i;
        seqs[i] = i;
    }
    write_model(2);
    for (int i = 0; i < 3; ++i) {
        struct fixture f;
        struct llm_session_params q = params_of(2, 6, 0);
        struct llm_sampler sampler;
        q.n_best = n_bests[i];
        CHECK_OK(open_model(&f, &q));
        if (f.s == NULL) {
            close_model(&f);
            continue;
        }
        const struct llm_batch batch = { tokens, seqs, NULL, 6 };
        CHECK_OK(llm_eval(f.s, &batch));
        CHECK_EQ_I(llm_n_outputs(f.s), 6);
        for (int k = 0; k < 6; ++k) {
            float want[N_VOCAB];
            int32_t token = -1, best = 0;
            fresh_logits(tokens + k, 1, 1, want);
            for (int t = 1; t < N_VOCAB; ++t) { best = want[t] > want[best] ? t : best; }
            CHECK_OK(llm_sampler_init(&sampler, NULL));
            CHECK_OK(llm_sample(f.s, k, &sampler, &token));
            CHECK_EQ_I(token, best);
        }
        close_model(&f);
    }
}

TEST(llm_refuses_bad_sessions) {
    write_model(1);
    for (int type = -1; type < 60; ++type) {
        const bool is_kv = type == GCUDA_TYPE_F16 || type == GCUDA_TYPE_BF16 || type == GCUDA_TYPE_F32 ||
                           type == GCUDA_TYPE_Q8_0 || type == GCUDA_TYPE_Q4_0;
        struct fixture f;
        struct llm_session_params q = params_of(8, 1, 1);
        q.kv_type = (enum gcuda_type) type;
        CHECK_EQ_I(open_model(&f, &q), is_kv ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_UNSUPPORTED);
        if (!is_kv) { CHECK_HAS(gcuda_last_error(), "kv_type"); }
        close_model(&f);
    }
    for (int which = 0; which < 5; ++which) {
        struct fixture f;
        struct llm_session_params q = params_of(8, 1, 1);
        int32_t * const fields[] = { &q.n_ctx, &q.n_seqs, &q.n_chunk, &q.n_outputs, &q.n_threads };
        *fields[which] = -1;
        CHECK_EQ_I(open_model(&f, &q), GCUDA_STATUS_INVALID_ARGUMENT);
        CHECK_HAS(gcuda_last_error(), " -1");
        close_model(&f);
    }
}

TEST(llm_refuses_null) {
    struct llm_sampler sampler;
    bool is_done = false;
    size_t n = 0;
    int32_t token = 0;
    float vector[N_EMBD];
    const struct llm_batch batch = { &token, NULL, NULL, 1 };
    const struct llm_message message = { "user", "x" };
    CHECK_OK(llm_sampler_init(&sampler, NULL));
    const gcuda_status of_model[] = {
        llm_tokenize(NULL, "x", 1, 0, &token, 1, &n),
        llm_detokenize(NULL, &token, 1, false, NULL, 0, &n),
        llm_chat_tokenize(NULL, &message, 1, true, &token, 1, &n),
        llm_chat_text(NULL, &message, 1, true, NULL, 0, &n),
    };
    for (size_t i = 0; i < sizeof of_model / sizeof *of_model; ++i) {
        CHECK_EQ_I(of_model[i], GCUDA_STATUS_INVALID_ARGUMENT);
    }
    CHECK_HAS(gcuda_last_error(), "the model is NULL");
    const gcuda_status of_session[] = {
        llm_eval(NULL, &batch),
        llm_eval_tokens(NULL, 0, &token, 1),
        llm_submit(NULL, &batch),
        llm_poll(NULL, 0, &is_done),
        llm_seq_keep_prefix(NULL, 0, &token, 1, &n),
        llm_seq_truncate(NULL, 0, 0),
        llm_seq_copy(NULL, 0, 0),
        llm_seq_shift(NULL, 0, 0, 1),
        llm_state_save(NULL, NULL, 0, &n),
        llm_state_restore(NULL, &token, sizeof token),
        llm_embed(NULL, &token, 1, vector),
        llm_sample(NULL, 0, &sampler, &token),
    };
    for (size_t i = 0; i < sizeof of_session / sizeof *of_session; ++i) {
        CHECK_MSG(of_session[i] == GCUDA_STATUS_INVALID_ARGUMENT, "function %d: %d", (int) i, (int) of_session[i]);
    }
    CHECK_HAS(gcuda_last_error(), "the session is NULL");
    llm_cancel(NULL);
    CHECK(strcmp(llm_token_piece(NULL, 0, &n), "") == 0 && n == 0 && llm_token_bos(NULL) == -1);
    CHECK(!llm_token_is_end(NULL, 0) && !llm_token_is_special(NULL, 0) && !llm_is_busy(NULL));
    CHECK(llm_model_info(NULL).n_vocab == 0 && strcmp(llm_model_info(NULL).arch, "") == 0);
    CHECK(llm_logits(NULL, 0) == NULL && llm_seq_logits(NULL, 0) == NULL && llm_session_backend(NULL, 0) == NULL);
    CHECK(llm_n_ctx(NULL) == 0 && llm_n_free(NULL) == 0 && llm_n_outputs(NULL) == 0 && llm_seq_length(NULL, 0) == 0);
    CHECK_EQ_I(llm_seq_token(NULL, 0, 0), -1);
}

// =====================================================================================================================
// >>steps
// =====================================================================================================================
TEST(llm_steps_of_a_game_loop) {
    struct fixture f;
    const struct llm_session_params q = params_of(5, 1, 1);
    float whole[N_VOCAB];
    bool is_done = false;
    int n_polls = 0;
    write_model(2);
    fresh_logits(some_tokens, N_SOME, 5, whole);
    CHECK_OK(open_model(&f, &q));
    const struct llm_batch batch = { some_tokens, NULL, NULL, N_SOME };
    CHECK_OK(llm_submit(f.s, &batch));
    CHECK_EQ_I(llm_submit(f.s, &batch), GCUDA_STATUS_INVALID_ARGUMENT); // at work
    for (; !is_done && n_polls < 10000; ++n_polls) { CHECK_OK(llm_poll(f.s, 1, &is_done)); }
    CHECK_MSG(is_done && n_polls > 10, "%d polls", n_polls);
    CHECK(distance(llm_seq_logits(f.s, 0), whole) == 0.0f);
    CHECK_OK(llm_seq_truncate(f.s, 0, 0));
    CHECK_OK(llm_submit(f.s, &batch)); // cancelled in the middle of its second chunk
    for (int i = 0; i < 400 && llm_seq_length(f.s, 0) < 6; ++i) { CHECK_OK(llm_poll(f.s, 1, &is_done)); }
    CHECK(llm_is_busy(f.s));
    llm_cancel(f.s);
    CHECK(!llm_is_busy(f.s) && llm_seq_length(f.s, 0) == 5 && llm_n_free(f.s) == 59);
    CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens + 5, N_SOME - 5));
    CHECK(distance(llm_seq_logits(f.s, 0), whole) < 1e-4f);
    close_model(&f);
}

TEST(llm_polls_for_ever) { // the longest time there is: until the end
    struct fixture f;
    const struct llm_session_params q = params_of(5, 1, 1);
    const struct llm_batch batch = { some_tokens, NULL, NULL, N_SOME };
    bool is_done = false;
    write_model(1);
    CHECK_OK(open_model(&f, &q));
    CHECK_OK(llm_submit(f.s, &batch));
    for (int i = 0; i < 1000 && !is_done; ++i) { CHECK_OK(llm_poll(f.s, INT64_MAX, &is_done)); }
    CHECK(is_done && llm_seq_length(f.s, 0) == N_SOME);
    close_model(&f);
}

static bool stops_later(void * user, float share) {
    (void) share;
    return --*(int *) user > 0;
}

TEST(llm_stops_when_progress_says) {
    float whole[N_VOCAB];
    write_model(2);
    fresh_logits(some_tokens, N_SOME, 5, whole);
    for (int n = 1; n < 6; ++n) {
        struct fixture f;
        int left = n;
        struct llm_session_params q = params_of(5, 1, 1);
        q.progress = stops_later;
        q.progress_user = &left;
        CHECK_OK(open_model(&f, &q));
        const gcuda_status st = llm_eval_tokens(f.s, 0, some_tokens, N_SOME);
        CHECK(st == GCUDA_STATUS_ABORTED || (st == GCUDA_STATUS_SUCCESS && n > 3));
        const int32_t length = llm_seq_length(f.s, 0);
        CHECK(length % 5 == 0 || st == GCUDA_STATUS_SUCCESS); // whole chunks
        left = 1000;
        if (st != GCUDA_STATUS_SUCCESS) {
            CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens + length, (size_t) (N_SOME - length)));
        }
        CHECK(distance(llm_seq_logits(f.s, 0), whole) < 1e-4f);
        close_model(&f);
    }
}

// =====================================================================================================================
// >>states
// =====================================================================================================================
TEST(llm_states) {
    struct fixture f, g;
    struct llm_session_params q = params_of(8, 2, 1);
    float want[N_VOCAB];
    size_t n = 0;
    write_model(2);
    CHECK_OK(open_model(&f, &q));
    CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens, 11));
    CHECK_OK(llm_seq_copy(f.s, 0, 1));
    CHECK_OK(llm_eval_tokens(f.s, 1, some_tokens + 11, 2));
    CHECK_OK(llm_state_save(f.s, NULL, 0, &n));
    char * data = (char *) malloc(n);
    REQUIRE(data != NULL);
    CHECK_EQ_I(llm_state_save(f.s, data, n - 1, &n), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_OK(llm_state_save(f.s, data, n, &n));
    CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens + 11, 5));
    memcpy(want, llm_seq_logits(f.s, 0), sizeof want);
    q.n_ctx = 40; // another size will do
    CHECK_OK(open_model(&g, &q));
    CHECK_OK(llm_state_restore(g.s, data, n));
    CHECK(llm_seq_length(g.s, 0) == 11 && llm_seq_length(g.s, 1) == 13 && llm_n_free(g.s) == 40 - 13 &&
          llm_seq_token(g.s, 1, 12) == some_tokens[12]);
    CHECK_OK(llm_eval_tokens(g.s, 0, some_tokens + 11, 5));
    CHECK(distance(llm_seq_logits(g.s, 0), want) == 0.0f);
    for (size_t at = 0; at < n && at < 700; ++at) { // damaged: refused or harmless, and the session lives
        data[at] ^= 0x41;
        const gcuda_status st = llm_state_restore(g.s, data, n);
        CHECK(st == GCUDA_STATUS_SUCCESS || (st == GCUDA_STATUS_INVALID_DATA && llm_n_free(g.s) == 40));
        data[at] ^= 0x41;
    }
    for (size_t cut = 0; cut < n; cut += 97) {
        CHECK_EQ_I(llm_state_restore(g.s, data, cut), GCUDA_STATUS_INVALID_DATA);
    }
    CHECK_OK(llm_eval_tokens(g.s, 0, some_tokens, 3));
    q.kv_type = GCUDA_TYPE_F16;
    close_model(&g);
    CHECK_OK(open_model(&g, &q));
    CHECK_EQ_I(llm_state_restore(g.s, data, n), GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "another model or cache type");
    free(data);
    close_model(&g);
    close_model(&f);
}

// =====================================================================================================================
// >>sampling
// =====================================================================================================================
static int32_t draw(struct fixture * f, struct llm_sampler * s, const float * logits) {
    int32_t token = -1;
    CHECK_OK(llmi_choose(f->s, logits, s, &token));
    return token;
}

TEST(llm_sampling) {
    struct fixture f;
    struct llm_sampler s;
    struct llm_sampler_params p;
    float logits[N_VOCAB];
    enum { N_DRAWS = 20000 };
    int counts[4] = { 0 };
    write_model(1);
    CHECK_OK(open_model(&f, NULL));
    for (int i = 0; i < N_VOCAB; ++i) { logits[i] = -100.0f; }
    logits[7] = logits[9] = 2.0f;
    CHECK_OK(llm_sampler_init(&s, NULL));
    CHECK_EQ_I(draw(&f, &s, logits), 7); // of equal ones the first
    memset(&p, 0, sizeof p);
    p.temperature = 1.0f;
    p.top_k = 1;
    CHECK_OK(llm_sampler_init(&s, &p));
    CHECK_EQ_I(draw(&f, &s, logits), 7);
    p.top_k = 0;
    const double wanted[4] = { 0.5, 0.25, 0.15, 0.1 };
    for (int i = 0; i < 4; ++i) { logits[20 * i + 3] = (float) log(wanted[i]) + 50.0f; }
    for (int mode = 0; mode < 3; ++mode) { // no filter; filters that let all four in
        double chi = 0.0;
        p.top_k = mode == 1 ? 5 : 0;
        p.top_p = mode == 2 ? 0.95f : 0.0f;
        p.seed = 3;
        CHECK_OK(llm_sampler_init(&s, &p));
        memset(counts, 0, sizeof counts);
        for (int i = 0; i < N_DRAWS; ++i) {
            const int32_t token = draw(&f, &s, logits);
            CHECK(token % 20 == 3 && token < 80);
            ++counts[token / 20 & 3];
        }
        for (int i = 0; i < 4; ++i) {
            chi += (counts[i] - N_DRAWS * wanted[i]) * (counts[i] - N_DRAWS * wanted[i]) / (N_DRAWS * wanted[i]);
        }
        CHECK_MSG(chi < 16.3, "mode %d: chi-square %g of 3 degrees of freedom", mode, chi); // 0.1 %
    }
    const struct {
        float top_p, min_p;
        int n;
    } filters[] = { { 0.49f, 0.0f, 1 }, { 0.51f, 0.0f, 2 }, { 0.0f, 0.28f, 3 }, { 0.0f, 0.9f, 1 }, { 0.8f, 0.45f, 2 } };
    for (size_t k = 0; k < sizeof filters / sizeof *filters; ++k) {
        int most = 0;
        p.top_k = 40;
        p.top_p = filters[k].top_p;
        p.min_p = filters[k].min_p;
        CHECK_OK(llm_sampler_init(&s, &p));
        for (int i = 0; i < 500; ++i) { most = (int) llmi_max(most, draw(&f, &s, logits) / 20 + 1); }
        CHECK_EQ_I(most, filters[k].n);
    }
    logits[5] = NAN;
    int32_t token;
    CHECK_EQ_I(llmi_choose(f.s, logits, &s, &token), GCUDA_STATUS_INVALID_DATA);
    for (int i = 0; i < N_VOCAB; ++i) { logits[i] = -INFINITY; }
    CHECK_EQ_I(llmi_choose(f.s, logits, &s, &token), GCUDA_STATUS_INVALID_DATA);
    CHECK_EQ_I(llm_sample(f.s, 0, &s, &token), GCUDA_STATUS_INVALID_ARGUMENT); // nothing was evaluated
    p.top_p = NAN;
    CHECK_EQ_I(llm_sampler_init(&s, &p), GCUDA_STATUS_INVALID_ARGUMENT);
    close_model(&f);
}

// A sampler that llm_sampler_init did not make, or whose numbers were changed since, is refused.
TEST(llm_samplers_not_made) {
    struct fixture f;
    struct llm_sampler s;
    struct llm_sampler_params p;
    int32_t token = 0;
    write_model(1);
    CHECK_OK(open_model(&f, NULL));
    CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens, 3));
    memset(&s, 0, sizeof s);
    llm_sampler_accept(&s, 1);
    CHECK_EQ_I(llm_sample(f.s, 0, &s, &token), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "llm_sampler_init");
    CHECK_OK(llm_sampler_init(&s, NULL));
    s.params.repeat_last = LLM_MAX_PENALTY + 1;
    CHECK_EQ_I(llm_sample(f.s, 0, &s, &token), GCUDA_STATUS_INVALID_ARGUMENT);
    s.params.repeat_last = 5; // fewer than before will do
    for (int i = 0; i < 9; ++i) { CHECK_OK(llm_sample(f.s, 0, &s, &token)); }
    close_model(&f);
    memset(&p, 0, sizeof p);
    p.repeat_penalty = INFINITY;
    CHECK_EQ_I(llm_sampler_init(&s, &p), GCUDA_STATUS_INVALID_ARGUMENT);
    p.repeat_penalty = 1.0f;
    p.temperature = INFINITY;
    CHECK_EQ_I(llm_sampler_init(&s, &p), GCUDA_STATUS_INVALID_ARGUMENT);
}

// Only some of the logits leave the device: the same tokens as with all of them, greedy and drawn, with a penalty.
TEST(llm_best_logits) {
    write_model(2);
    for (int mode = 0; mode < 3; ++mode) {
        struct fixture all, some;
        struct llm_sampler a, b;
        struct llm_sampler_params p;
        struct llm_session_params q = params_of(8, 2, 2);
        memset(&p, 0, sizeof p);
        p.repeat_penalty = mode == 0 ? 0.0f : 1.3f;
        p.repeat_last = 6;
        p.temperature = mode == 2 ? 1.5f : 0.0f;
        p.top_k = mode == 2 ? 12 : 0;
        p.top_p = mode == 2 ? 0.9f : 0.0f;
        p.seed = 5;
        CHECK_OK(llm_sampler_init(&a, &p));
        CHECK_OK(llm_sampler_init(&b, &p));
        CHECK_OK(open_model(&all, &q));
        q.n_best = mode == 0 ? 1 : mode == 1 ? 7 : 18;
        CHECK_OK(open_model(&some, &q));
        int32_t tokens[4] = { 10, 20, 30, 40 }, seqs[4] = { 0, 1, 0, 1 };
        const struct llm_batch batch = { tokens, seqs, NULL, 4 };
        CHECK_OK(llm_eval(all.s, &batch));
        CHECK_OK(llm_eval(some.s, &batch));
        CHECK(llm_logits(some.s, 0) == NULL && llm_seq_logits(some.s, 1) == NULL && llm_n_outputs(some.s) == 2);
        for (int i = 0; i < 50; ++i) {
            int32_t x = -1, y = -2;
            CHECK_OK(llm_sample(all.s, i % 2, &a, &x));
            CHECK_OK(llm_sample(some.s, i % 2, &b, &y));
            CHECK_MSG(x == y, "mode %d, token %d: %d and %d", mode, i, x, y);
            if (i >= 48) { continue; } // a token for each sequence
            const int32_t pair[2] = { x, x }, both[2] = { 0, 1 };
            const struct llm_batch next = { pair, both, NULL, 2 };
            if (i % 2 == 0) { continue; }
            CHECK_OK(llm_eval(all.s, &next));
            CHECK_OK(llm_eval(some.s, &next));
        }
        close_model(&all);
        close_model(&some);
    }
    struct fixture f;
    struct llm_session_params q = params_of(8, 1, 1);
    q.n_best = N_VOCAB + 1;
    CHECK_EQ_I(open_model(&f, &q), GCUDA_STATUS_INVALID_ARGUMENT);
    close_model(&f);
}

TEST(llm_repetition_penalty) {
    struct llm_sampler s;
    struct llm_sampler_params p;
    float logits[8] = { 2.0f, -2.0f, 0.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f }, before[LLM_MAX_PENALTY], copy[8];
    memset(&p, 0, sizeof p);
    p.repeat_penalty = 2.0f;
    p.repeat_last = 3;
    memcpy(copy, logits, sizeof copy);
    CHECK_OK(llm_sampler_init(&s, &p));
    llm_sampler_accept(&s, 3); // too long ago
    llm_sampler_accept(&s, 0);
    llm_sampler_accept(&s, 1);
    llm_sampler_accept(&s, 0);
    llmi_penalize(&s, logits, 8, before);
    CHECK(logits[0] == 1.0f && logits[1] == -4.0f && logits[2] == 0.0f && logits[3] == 1.0f);
    llmi_unpenalize(&s, logits, 8, before);
    CHECK(memcmp(copy, logits, sizeof copy) == 0);
}

// =====================================================================================================================
// >>memory   each allocation fails once; none is made per token
// =====================================================================================================================
static gcuda_status use_all(void) {
    struct fixture f;
    struct llm_sampler s;
    struct llm_session_params q = params_of(7, 2, 2);
    const struct llm_message message = { "user", "abc" };
    int32_t tokens[64], token = 0;
    size_t n = 0;
    static char state[80000];
    gcuda_status st = open_model(&f, &q);
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_sampler_init(&s, NULL); }
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_chat_tokenize(f.m, &message, 1, true, tokens, 64, &n); }
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_eval_tokens(f.s, 0, tokens, n); }
    for (int i = 0; i < 3 && st == GCUDA_STATUS_SUCCESS; ++i) {
        st = llm_sample(f.s, 0, &s, &token);
        if (st == GCUDA_STATUS_SUCCESS) { st = llm_eval_tokens(f.s, 0, &token, 1); }
    }
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_seq_shift(f.s, 0, 1, 4); }
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_state_save(f.s, state, sizeof state, &n); }
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_state_restore(f.s, state, n); }
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_seq_truncate(f.s, 0, 0); }
    float vector[N_EMBD];
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_embed(f.s, some_tokens, 5, vector); }
    close_model(&f);
    return st;
}

TEST(llm_allocations_fail) {
    long k = 1;
    write_model(2);
    for (; k < 2000; ++k) {
        struct fault f;
        fault_begin(&f, k);
        gcuda_clear_last_error();
        const gcuda_status st = use_all();
        gcuda_shutdown();
        CHECK_EQ_I(f.live, 0);
        fault_end(&f);
        // a plan that cannot be updated is made anew
        const bool may_succeed = !f.fired || strcmp(test_backend(), "CPU") != 0;
        CHECK_MSG(f.fired ? may_succeed || st != GCUDA_STATUS_SUCCESS : st == GCUDA_STATUS_SUCCESS,
            "allocation %ld: status %d, %s", k, (int) st, gcuda_last_error());
        if (!f.fired) { break; }
    }
    CHECK_MSG(k > 20 && k < 2000, "%ld allocations", k);
}

// Nor when the graph grows: the tokens pass the first LLMI_KV_STEP cells. On a simulated device a token takes a second.
static void tokens_allocate_nothing(const char * arch, const struct llm_session_params * q, int n_tokens) {
    struct fault fault;
    struct fixture f;
    struct llm_sampler s;
    int32_t token = 0;
    fault_begin(&fault, 0);
    CHECK_OK(open_model(&f, q));
    CHECK_OK(llm_sampler_init(&s, NULL));
    CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens, 11));
    CHECK_OK(llm_eval_tokens(f.s, 0, &token, 1));
    const long before = fault.n_calls;
    for (int i = 0; i < n_tokens; ++i) {
        CHECK_OK(llm_sample(f.s, 0, &s, &token));
        CHECK_OK(llm_eval_tokens(f.s, 0, &token, 1));
        CHECK_MSG(fault.n_calls == before, "%s, cache of type %d: %ld allocations by token %d", arch, (int) q->kv_type,
            fault.n_calls - before, i);
    }
    CHECK_OK(llm_eval_tokens(f.s, 0, some_tokens, 11)); // another prompt: on a GPU it has another plan
    CHECK(fault.n_calls == before || strcmp(test_backend(), "CPU") != 0);
    close_model(&f);
    gcuda_shutdown();
    CHECK_EQ_I(fault.live, 0);
    fault_end(&fault);
}

TEST(llm_allocates_nothing_per_token) {
    static const char * const archs[] = { "llama", "gemma3" };
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_Q4_0 };
    const bool is_cpu = strcmp(test_backend(), "CPU") == 0;
    for (int i = 0; i < 3; ++i) {
        struct llm_session_params q = params_of(8, 1, 1);
        const char * arch = archs[i % 2];
        q.kv_type = types[i / 2];
        q.n_ctx = is_cpu ? 2 * LLMI_KV_STEP : 64;
        q.n_best = i == 1 ? 40 : 0;
        write_arch(arch, i % 2 == 0 ? 2 : 7);
        tokens_allocate_nothing(arch, &q, is_cpu ? LLMI_KV_STEP : 5);
        if (!is_cpu && i == 0) { break; }
    }
}

// =====================================================================================================================
// >>files
// =====================================================================================================================
TEST(llm_refuses_files_by_name) {
    static const char * const keys[] = { "general.architecture", "llama.context_length", "llama.embedding_length",
        "llama.block_count", "llama.feed_forward_length", "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.model", "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges" };
    static const struct {
        const char * key;
        uint32_t value;
        const char * message;
    } wrong[] = {
        { "llama.block_count", 0, "block_count" },
        { "llama.block_count", 513, "block_count" },
        { "llama.block_count", 3, "blk.2.attn_norm.weight" },
        { "llama.attention.head_count_kv", 3, "share 3" },
        { "llama.attention.head_count", 0, "head_count" },
        { "llama.attention.head_count", 6, "divide" },
        { "llama.embedding_length", 128, "token_embd.weight" },
        { "llama.rope.dimension_count", 7, "odd" },
        { "llama.expert_count", 4, "expert_used_count" },
    };
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    write_model(2);
    const struct gcuda_gguf_init_params params = { false, NULL, &st, false, false };
    for (size_t i = 0; i < sizeof keys / sizeof *keys + sizeof wrong / sizeof *wrong; ++i) {
        const size_t w = i - sizeof keys / sizeof *keys;
        const bool is_missing = i < sizeof keys / sizeof *keys;
        struct llm_model * m = NULL;
        struct gcuda_gguf_context * g = gcuda_gguf_init_from_file(model_path, params);
        REQUIRE(g != NULL);
        CHECK_OK(is_missing ? gcuda_gguf_remove_key(g, keys[i], NULL)
                            : gcuda_gguf_set_val_u32(g, wrong[w].key, wrong[w].value));
        CHECK_OK(gcuda_gguf_write_to_file(g, path_of(1), false));
        gcuda_gguf_free(g);
        CHECK(llm_model_load(path_of(1), NULL, &m) != GCUDA_STATUS_SUCCESS && m == NULL);
        CHECK_HAS(gcuda_last_error(), is_missing ? keys[i] : wrong[w].message);
        remove(path_of(1));
    }
}

static gcuda_status set_rope(struct gcuda_gguf_context * g, int which) {
    static const struct {
        const char * key;
        float value;
    } rows[] = {
        { "llama.rope.scaling.factor", 1e-40f }, // its inverse is no number
        { "llama.rope.scaling.factor", -1.0f },
        { "llama.rope.freq_base", 0.0f },
    };
    return gcuda_gguf_set_val_f32(g, rows[which].key, rows[which].value);
}

TEST(llm_refuses_scaling_of_rope) {
    write_model(1);
    for (int which = 0; which < 3; ++which) {
        struct llm_model * m = NULL;
        CHECK_EQ_I(load_changed(set_rope, which, NULL, NULL, &m), GCUDA_STATUS_INVALID_DATA);
        CHECK_HAS(gcuda_last_error(), "rope");
        llm_model_free(m);
    }
}

// Backends start on another thread while the file is read: errors of the file come first, both with their messages.
TEST(llm_load_reports_each_side) {
    static const struct {
        const char *path, *backend, *has;
    } rows[] = {
        { NULL, "NOWHERE7", "NOWHERE7" },
        { "no/such/file.gguf", "CPU", "no/such/file.gguf" },
        { "no/such/file.gguf", "NOWHERE7", "no/such/file.gguf" },
    };
    write_model(2);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        struct llm_model_params p;
        struct llm_model * m = NULL;
        struct fault f;
        memset(&p, 0, sizeof p);
        p.backend = rows[i].backend;
        fault_begin(&f, 0);
        CHECK(llm_model_load(rows[i].path ? rows[i].path : model_path, &p, &m) != GCUDA_STATUS_SUCCESS && m == NULL);
        CHECK_HAS(gcuda_last_error(), rows[i].has);
        gcuda_shutdown();
        CHECK_EQ_I(f.live, 0);
        fault_end(&f);
    }
}

TEST(llm_load_says_what_it_took) {
    const struct llm_session_params q = params_of(7, 1, 1);
    struct fixture f;
    write_model(2);
    const int64_t begin_us = gcuda_time_us();
    CHECK_OK(open_model(&f, &q));
    const int64_t took_us = gcuda_time_us() - begin_us;
    const struct llm_load_times t = llm_model_info(f.m).load;
    CHECK(t.file_us > 0 && t.vocab_us >= 0 && t.backend_us >= 0 && t.wait_us >= 0 && t.weights_us >= 0);
    CHECK(t.file_us + t.vocab_us + t.wait_us + t.weights_us <= t.all_us);
    CHECK(t.backend_us <= t.all_us && t.all_us <= took_us);
    close_model(&f);
}

TEST(llm_tidies_up) { remove(model_path); } // the last test of the file
