/* chat.h - what a chat model's prompt looks like. */
#ifndef QWEN3_CHAT_H
#define QWEN3_CHAT_H

#include "util.h"

struct chat {
    bool has_template;      /* the model is one for chats */
    bool is_chatml;         /* and its template is the one that this program knows */
    bool opens_thinking;    /* the template begins the answer with <think> */
};

/* Looks for chat_template.jinja, or chat_template in tokenizer_config.json or chat_template.json. */
bool chat_read(struct chat *chat, const char *dir, struct error *e);

/* ChatML: system (NULL: none) and user text, and the beginning of the answer. */
void chat_render(const struct chat *chat, const char *system, const char *user, size_t user_length, struct text *out);

/* The end-of-text token that tokenizer_config.json names, to be freed; NULL where there is none. */
char *chat_eos_token(const char *dir);

#endif
