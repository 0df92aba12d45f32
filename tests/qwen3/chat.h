/* chat.h - what a chat model's prompt looks like. */
#ifndef QWEN3_CHAT_H
#define QWEN3_CHAT_H

#include "util.h"

struct chat {
    bool  has_template;     /* the model is one for chats */
    bool  is_chatml;        /* and its template is one that this program renders */
    char *system;           /* the system message where the chat has none; NULL: none either */
    char *opening;          /* what the answer begins with, "<think>\n" for example */
};

/* Looks for chat_template.jinja, or chat_template in tokenizer_config.json or chat_template.json. */
bool chat_read(struct chat *chat, const char *dir, struct error *e);
void chat_free(struct chat *chat);

/* ChatML: system (NULL: the template's) and user text, and the beginning of the answer. */
void chat_render(const struct chat *chat, const char *system, const char *user, size_t user_length, struct text *out);

/* The end-of-text token that tokenizer_config.json names, to be freed; NULL where there is none. */
char *chat_eos_token(const char *dir);

#endif
