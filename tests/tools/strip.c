/* Leaves out of a SPIR-V module what nothing in it uses.
 *
 *   strip IN.spv OUT.spv
 *
 * glslang declares every view of every buffer that a shader includes. What no function needs goes, with its decorations:
 * types, constants, variables, also from the entry points' lists. Which operands are ids and which are numbers is not
 * looked at: a number that happens to be an id keeps that. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER = 5, BOUND = 3, MAGIC = 0x07230203 };
enum { OP_NAME = 5, OP_MEMBER_NAME = 6, OP_ENTRY_POINT = 15, OP_TYPE_FIRST = 19, OP_TYPE_LAST = 39, OP_CONSTANT_FIRST = 41,
       OP_CONSTANT_LAST = 52, OP_FUNCTION = 54, OP_VARIABLE = 59, OP_DECORATE = 71, OP_MEMBER_DECORATE = 72, BUILT_IN = 11 };

static uint32_t *words, count, bound;
static bool *used;

static void fail(const char *file, const char *why)
{
    fprintf(stderr, "strip: %s: %s\n", file, why);
    exit(1);
}

static uint32_t op_at(uint32_t at) { return words[at] & 0xffff; }
static uint32_t length_at(uint32_t at) { return words[at] >> 16; }

static void read_module(const char *file)
{
    FILE *f = fopen(file, "rb");
    long size;
    if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) < 4 * HEADER || size % 4 || fseek(f, 0, SEEK_SET))
        fail(file, "cannot be read");
    count = (uint32_t)size / 4;
    words = malloc((size_t)size);
    if (!words || fread(words, 4, count, f) != count) fail(file, "cannot be read");
    fclose(f);
    bound = words[BOUND];
    used = calloc(bound, 1);
    if (words[0] != MAGIC || !used) fail(file, "no SPIR-V");
    for (uint32_t at = HEADER; at < count; at += length_at(at))
        if (!length_at(at) || length_at(at) > count - at) fail(file, "an instruction does not end");
}

/* Marks what an instruction names; was any of it new? */
static bool use_all(uint32_t at)
{
    bool news = false;
    for (uint32_t i = 1; i < length_at(at); i++) {
        uint32_t id = words[at + i];
        news = news || (id < bound && !used[id]);
        if (id < bound) used[id] = true;
    }
    return news;
}

/* The first word behind an entry point's name, where the list of its variables begins. */
static uint32_t list_of(uint32_t at)
{
    uint32_t i = 3;
    while (i + 1 < length_at(at) && words[at + i] >> 24) i++;
    return i + 1;
}

/* Where a declaration that may go has its id; 0: it stays. */
static uint32_t id_at(uint32_t op)
{
    if (op >= OP_TYPE_FIRST && op <= OP_TYPE_LAST) return 1;
    return (op >= OP_CONSTANT_FIRST && op <= OP_CONSTANT_LAST) || op == OP_VARIABLE ? 2 : 0;
}

/* Names and decorations go with what they are said of. */
static bool is_said_of(uint32_t op)
{
    return op == OP_NAME || op == OP_MEMBER_NAME || op == OP_DECORATE || op == OP_MEMBER_DECORATE;
}

/* A constant of the kind is the workgroup's size, which counts where no function asks for it. */
static bool is_built_in(uint32_t at) { return op_at(at) == OP_DECORATE && words[at + 2] == BUILT_IN; }

/* Marks what functions and the module's head use, and what that needs in turn. */
static void mark(void)
{
    bool more = true;
    while (more) {
        bool inside = false;
        more = false;
        for (uint32_t at = HEADER; at < count; at += length_at(at)) {
            uint32_t op = op_at(at), id = id_at(op);
            inside = inside || op == OP_FUNCTION;
            if (is_built_in(at)) used[words[at + 1]] = true;
            if (!inside && (is_said_of(op) || (id && !used[words[at + id]]))) continue;
            if (op == OP_ENTRY_POINT) used[words[at + 2]] = true;
            else more = use_all(at) || more;
        }
    }
}

static void write_module(const char *file)
{
    FILE *f = fopen(file, "wb");
    bool inside = false;
    if (!f) fail(file, "cannot be written");
    fwrite(words, 4, HEADER, f);
    for (uint32_t at = HEADER; at < count; at += length_at(at)) {
        uint32_t op = op_at(at), n = length_at(at), id = is_said_of(op) ? 1 : id_at(op);
        inside = inside || op == OP_FUNCTION;
        if (op == OP_ENTRY_POINT) {
            uint32_t to = list_of(at), head;
            for (uint32_t i = to; i < n; i++) if (used[words[at + i]]) words[at + to++] = words[at + i];
            head = to << 16 | op;
            fwrite(&head, 4, 1, f);
            fwrite(words + at + 1, 4, to - 1, f);
        } else if (inside || !id || used[words[at + id]]) fwrite(words + at, 4, n, f);
    }
    if (fclose(f)) fail(file, "cannot be written");
}

int main(int argc, char **argv)
{
    if (argc != 3) fail("usage", "strip IN.spv OUT.spv");
    read_module(argv[1]);
    mark();
    write_module(argv[2]);
    return 0;
}
