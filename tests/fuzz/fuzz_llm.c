// Texts and chats from bytes, with vocabularies of every kind that examples/llm.h has; and vocabularies from bytes.
// Whatever comes, nothing may crash or leak; counting and writing agree; ids are tokens; byte pairs round-trip byte for
// byte; what a chat's messages say adds no control token. For libFuzzer (`make build/fuzz/fuzz_llm`, seeds in
// tests/fuzz/llm).
//
// The first byte says what is done: 0 to 127 a text, 128 to 191 a chat, from 192 on the rest is a GGUF file whose
// vocabulary is read.
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#define LLM_IMPLEMENTATION
#include "../../examples/llm.h"

#include <stdio.h>
#include <stdlib.h>

static void want(bool is_true, const char * what) {
    if (is_true) { return; }
    fprintf(stderr, "fuzz_llm: %s; the last error: %s\n", what, gcuda_last_error());
    __builtin_trap();
}

// =====================================================================================================================
// >>models   a vocabulary for each pre-tokenizer, SentencePiece, WordPiece
// =====================================================================================================================
enum {
    N_PRE = sizeof llmi_pre_rows / sizeof *llmi_pre_rows,
    N_MODELS = N_PRE + 2,
    SPM = N_PRE,
    WPM = N_PRE + 1,
    MOST = 512
};

static const char * const special[] = { "<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "[INST]",
    "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|start|>", "<|channel|>", "<|message|>", "[UNK]", "[CLS]",
    "[SEP]" };
static const char * const words[] = { "ab", "abc", "he", "ll", "hell", "hello", "th", "the", "in", "ing", "er", "12",
    "123", "\xC4\xA0t", "\xC4\xA0the", "\xE2\x96\x81the", "\xE2\x96\x81in", "\xE2\x96\x81hello", "s", "e", "ab\xC3\xA9",
    "\xE2\x96\x81" };
static const char * const merges[] = { "a b", "ab c", "h e", "l l", "he ll", "hell o", "t h", "th e", "i n", "in g",
    "e r", "1 2", "12 3", "\xC4\xA0 t", "\xC4\xA0t he", "\xC4\xA0 the" };
enum {
    N_SPECIAL = sizeof special / sizeof *special,
    N_WORDS = sizeof words / sizeof *words,
    N_MERGES = sizeof merges / sizeof *merges
};

static struct llm_model models[N_MODELS];

struct tokens {
    char text[MOST][32];
    const char * list[MOST];
    int32_t types[MOST];
    float scores[MOST];
    uint64_t n;
};

static void add_token(struct tokens * t, const char * text, int32_t type) {
    for (uint64_t i = 0; i < t->n; ++i) {
        if (strcmp(t->text[i], text) == 0) { return; }
    }
    snprintf(t->text[t->n], sizeof t->text[0], "%s", text);
    t->list[t->n] = t->text[t->n];
    t->types[t->n] = type;
    t->scores[t->n] = -(float) t->n;
    ++t->n;
}

static void add_bytes(struct tokens * t, int which) { // all 256, as that kind writes them
    struct llmi_vocab v;
    char text[32];
    memset(&v, 0, sizeof v);
    llmi_byte_chars(&v);
    for (int i = 0; i < 256; ++i) {
        snprintf(text, sizeof text, "<0x%02X>", (unsigned) i);
        if (which < N_PRE) { text[llmi_utf8_put(v.char_of_byte[i], text)] = '\0'; }
        add_token(t, text, which == SPM ? LLMI_BYTE : LLMI_NORMAL);
    }
}

static struct gcuda_gguf_context * make_file(int which) {
    static struct tokens t;
    struct gcuda_gguf_context * g = gcuda_gguf_init_empty();
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    memset(&t, 0, sizeof t);
    for (int i = 0; i < N_SPECIAL; ++i) { add_token(&t, special[i], LLMI_CONTROL); }
    if (which != WPM) { add_bytes(&t, which); }
    for (int i = 0; i < N_WORDS; ++i) { add_token(&t, words[i], LLMI_NORMAL); }
    for (int c = 'a'; c <= 'z' && which != SPM; ++c) {
        const char text[2] = { (char) c, 0 };
        add_token(&t, text, LLMI_NORMAL);
    }
    st = gcuda_gguf_set_val_str(g, "tokenizer.ggml.model", which < N_PRE ? "gpt2" : which == SPM ? "llama" : "bert");
    if (st == GCUDA_STATUS_SUCCESS && which < N_PRE) {
        st = gcuda_gguf_set_val_str(g, "tokenizer.ggml.pre", llmi_pre_rows[which].name);
    }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_gguf_set_arr_str(g, "tokenizer.ggml.tokens", t.list, t.n); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_gguf_set_arr_str(g, "tokenizer.ggml.merges", merges, N_MERGES); }
    if (st == GCUDA_STATUS_SUCCESS) {
        st = gcuda_gguf_set_arr_data(g, "tokenizer.ggml.token_type", GCUDA_GGUF_TYPE_INT32, t.types, t.n);
    }
    if (st == GCUDA_STATUS_SUCCESS) {
        st = gcuda_gguf_set_arr_data(g, "tokenizer.ggml.scores", GCUDA_GGUF_TYPE_FLOAT32, t.scores, t.n);
    }
    if (st == GCUDA_STATUS_SUCCESS && which == WPM) { // [UNK], [CLS], [SEP]
        st = gcuda_gguf_set_val_u32(g, "tokenizer.ggml.unknown_token_id", N_SPECIAL - 3);
        if (st == GCUDA_STATUS_SUCCESS) {
            st = gcuda_gguf_set_val_u32(g, "tokenizer.ggml.cls_token_id", N_SPECIAL - 2);
        }
        if (st == GCUDA_STATUS_SUCCESS) {
            st = gcuda_gguf_set_val_u32(g, "tokenizer.ggml.seperator_token_id", N_SPECIAL - 1);
        }
    }
    want(g != NULL && st == GCUDA_STATUS_SUCCESS, "the file of a vocabulary");
    return g;
}

static void make_models(void) {
    for (int i = 0; i < N_MODELS; ++i) {
        struct llm_model * m = &models[i];
        m->arena = llmi_arena(0);
        m->file.g = make_file(i);
        want(llmi_vocab_load(&m->vocab, &m->file, m->arena) == GCUDA_STATUS_SUCCESS, "loading a vocabulary");
    }
}

// =====================================================================================================================
// >>texts
// =====================================================================================================================
enum { MAX_TOKENS = 1 << 16 };
static int32_t ids[MAX_TOKENS];
static char back[1 << 20];

static void fuzz_text(const struct llm_model * m, const char * text, size_t n, int flags) {
    size_t n_tokens = 0, n_again = 0, n_back = 0, n_piece;
    const gcuda_status st = llm_tokenize(m, text, n, flags, NULL, 0, &n_tokens);
    if (n_tokens > MAX_TOKENS) { return; }
    want(llm_tokenize(m, text, n, flags, ids, MAX_TOKENS, &n_again) == st && n_again == n_tokens,
        "counting and writing differ");
    if (st != GCUDA_STATUS_SUCCESS) { return; }
    for (size_t i = 0; i < n_tokens; ++i) {
        want(ids[i] >= 0 && ids[i] < m->vocab.n_tokens, "an id that is no token");
        (void) llm_token_piece(m, ids[i], &n_piece);
    }
    want(llm_utf8_whole(text, n) <= n, "more whole characters than bytes");
    want(llm_detokenize(m, ids, n_tokens, false, back, sizeof back, &n_back) == GCUDA_STATUS_SUCCESS, "detokenizing");
    const bool is_exact = m->vocab.kind == LLMI_BPE && (flags & LLM_PARSE_SPECIAL) == 0;
    want(!is_exact || (n_back == n && memcmp(back, text, n) == 0), "byte pairs do not round-trip");
}

// =====================================================================================================================
// >>chats   the first byte of a message says whose it is, a zero byte ends it
// =====================================================================================================================
enum { MAX_MESSAGES = 8 };

static size_t n_control(const struct llm_model * m, size_t n) {
    size_t sum = 0;
    for (size_t i = 0; i < n; ++i) { sum += m->vocab.type[ids[i]] == LLMI_CONTROL; }
    return sum;
}

static void fuzz_chat(struct llm_model * m, const struct llmi_template * t, char * data, size_t n, bool is_open) {
    static const char * const roles[] = { "system", "user", "assistant", "tool" };
    struct llm_message messages[MAX_MESSAGES], neutral[MAX_MESSAGES];
    size_t n_messages = 0, n_tokens = 0, n_again = 0, n_text = 0;
    for (char * at = data; at < data + n && n_messages < MAX_MESSAGES; at += strlen(at) + 1) {
        messages[n_messages].role = neutral[n_messages].role = roles[(unsigned char) *at % 4];
        messages[n_messages].content = *at != '\0' ? at + 1 : "";
        neutral[n_messages++].content = "x";
    }
    m->chat = t;
    m->template_text = t->name;
    (void) llm_chat_text(m, messages, n_messages, is_open, back, sizeof back, &n_text);
    const gcuda_status st = llm_chat_tokenize(m, messages, n_messages, is_open, NULL, 0, &n_tokens);
    if (n_tokens > MAX_TOKENS) { return; }
    want(llm_chat_tokenize(m, messages, n_messages, is_open, ids, MAX_TOKENS, &n_again) == st && n_again == n_tokens,
        "counting and writing of a chat differ");
    if (st != GCUDA_STATUS_SUCCESS) { return; }
    const size_t n_had = n_control(m, n_tokens);
    want(llm_chat_tokenize(m, neutral, n_messages, is_open, ids, MAX_TOKENS, &n_again) == GCUDA_STATUS_SUCCESS,
        "a chat of neutral messages");
    // unknown characters may be control tokens of SentencePiece and WordPiece, and phrases around a message may be left
    // out where it is empty
    want(m->vocab.kind != LLMI_BPE || n_had <= n_control(m, n_again), "a message that adds control tokens");
}

// =====================================================================================================================
// >>files
// =====================================================================================================================
static void fuzz_vocabulary(const uint8_t * data, size_t n) {
    struct llm_model m;
    struct gcuda_gguf_init_params params;
    static const char text[] = " Hello, the hell\xC3\xA9 12345 <|im_end|>\n\xF0\x9F\x99\x82\xFF";
    memset(&m, 0, sizeof m);
    memset(&params, 0, sizeof params);
    params.no_alloc = true;
    m.file.g = gcuda_gguf_init_from_buffer(data, n, params);
    if (m.file.g == NULL) { return; }
    m.arena = llmi_arena(0);
    if (llmi_vocab_load(&m.vocab, &m.file, m.arena) == GCUDA_STATUS_SUCCESS) {
        size_t n_tokens = 0, n_back = 0;
        for (int flags = 0; flags < 4; ++flags) {
            const gcuda_status st = llm_tokenize(&m, text, sizeof text - 1, flags, ids, MAX_TOKENS, &n_tokens);
            if (st != GCUDA_STATUS_SUCCESS || n_tokens > MAX_TOKENS) { continue; }
            for (size_t i = 0; i < n_tokens; ++i) {
                want(ids[i] >= 0 && ids[i] < m.vocab.n_tokens, "an id that is no token of the file's");
            }
            (void) llm_detokenize(&m, ids, n_tokens, true, back, sizeof back, &n_back);
        }
    }
    gcuda_gguf_free(m.file.g);
    gcuda_free(m.arena);
}

int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    enum { N_TEMPLATES = sizeof llmi_templates / sizeof *llmi_templates };
    if (models[0].arena == NULL) { make_models(); }
    if (size < 2) { return 0; }
    const int what = data[0];
    if (what >= 192) {
        fuzz_vocabulary(data + 1, size - 1);
        return 0;
    }
    char * text = (char *) malloc(size); // with a terminator for chats, without room to read beyond for texts
    if (text == NULL) { return 0; }
    memcpy(text, data + 2, size - 2);
    text[size - 2] = '\0';
    if (what < 128) { fuzz_text(&models[what % N_MODELS], text, size - 2, data[1] % 4); }
    if (what >= 128) {
        fuzz_chat(
            &models[what % N_MODELS], &llmi_templates[data[1] / 2 % N_TEMPLATES], text, size - 2, data[1] % 2 != 0);
    }
    free(text);
    return 0;
}
