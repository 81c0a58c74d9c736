// Tokenizes strings with llama.cpp's libllama.
//
// usage: oracle VOCAB.gguf SPECIAL <strings >tokens
//
// A string is a little-endian 32-bit length and that many bytes; its answer is a 32-bit count and that many 32-bit
// tokens. SPECIAL is 1 if spellings of special tokens are to be parsed.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "llama.h"

static void quiet(enum ggml_log_level level, const char * text, void * data) {
    (void) level; (void) text; (void) data;
}

int main(int argc, char ** argv) {
    if (argc != 3) {
        return 2;
    }
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    struct llama_model * model = llama_model_load_from_file(argv[1], params);
    if (!model) {
        fprintf(stderr, "cannot load %s\n", argv[1]);
        return 1;
    }
    const struct llama_vocab * vocab = llama_model_get_vocab(model);
    uint32_t n;
    while (fread(&n, sizeof n, 1, stdin) == 1) {
        char * text = malloc(n + 1);
        int32_t capacity = (int32_t) n + 16;
        llama_token * tokens = malloc(sizeof(llama_token) * capacity);
        if (!text || !tokens || fread(text, 1, n, stdin) != n) {
            return 1;
        }
        int32_t count = llama_tokenize(vocab, text, (int32_t) n, tokens, capacity, false, argv[2][0] == '1');
        if (count < 0) {
            return 1;
        }
        fwrite(&count, sizeof count, 1, stdout);
        fwrite(tokens, sizeof(llama_token), count, stdout);
        free(text);
        free(tokens);
    }
    return 0;
}
