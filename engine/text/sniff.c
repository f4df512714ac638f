#include "engine/text/sniff.h"

#include <string.h>

#include "engine/text/unicode.h"

/* Prints rows as JSON lines, a batch at a time; `open` is an iterable of record batches. */
#define BY_PYARROW(open)                                                                                               \
    "python3 -c 'import sys, json, pyarrow, pyarrow.parquet; sys.stdout.writelines(json.dumps({\"text\": t}) + "       \
    "\"\\n\" for b in " open                                                                                           \
    " for t in b[\"text\"].to_pylist())' %s | phalanx tokenize ... -; or build phalanx's own "                         \
    "reader: pip install pyarrow, then make (make ARROW=FOLDER where Arrow is elsewhere)"
#define UNPACK        "unpack it and name the files in it"
#define TO_UTF8(from) "convert it: iconv -f " from " -t UTF-8 %s > x.txt"

/* Common files that are not text. `todo` may name the file once. */
static const struct {
    const char *magic;
    int length, offset;
    const char *what, *todo;
} kinds[] = {
    {"PAR1", 4, 0, "a Parquet file",
     BY_PYARROW("pyarrow.parquet.ParquetFile(sys.argv[1]).iter_batches(columns=[\"text\"])")},
    {"ARROW1", 6, 0, "an Arrow file",
     BY_PYARROW("(f.get_batch(i) for f in [pyarrow.ipc.open_file(sys.argv[1])] for i in range(f.num_record_batches))")},
    {"\xFF\xFF\xFF\xFF", 4, 0, "an Arrow stream", BY_PYARROW("pyarrow.ipc.open_stream(open(sys.argv[1], \"rb\"))")},
    {"FEA1", 4, 0, "a Feather file of version 1",
     "write it as Arrow: python3 -c 'import sys, pyarrow.feather as f; f.write_feather(f.read_table(sys.argv[1]), "
     "\"x.arrow\")' %s"},
    {"PK\3\4", 4, 0, "a zip archive", UNPACK},
    {"7z\xBC\xAF\x27\x1C", 6, 0, "a 7z archive", UNPACK},
    {"Rar!\x1A\x07", 6, 0, "a rar archive", UNPACK},
    {"ustar", 5, 257, "a tar archive", UNPACK},
    {"\x04\x22\x4D\x18", 4, 0, "packed with lz4", "unpack it: lz4 -dc %s | phalanx tokenize ... -"},
    {"Obj\1", 4, 0, "an Avro file", "write its records as JSON-lines"},
    {"MMIDIDX", 7, 0, "the index of a data set that is tokenized already", "train on it as it is: data.train=PREFIX"},
    {"SQLite format 3", 15, 0, "an SQLite database", "write its rows as JSON-lines"},
    {"%PDF-", 5, 0, "a PDF", "extract its text: pdftotext %s"},
    {"\xFF\xFE\0\0", 4, 0, "text in UTF-32", TO_UTF8("UTF-32")},
    {"\xFF\xFE", 2, 0, "text in UTF-16", TO_UTF8("UTF-16")},
    {"\xFE\xFF", 2, 0, "text in UTF-16", TO_UTF8("UTF-16")},
};

#define ANYWAY " (--format text takes it as it is)"

static status refuse_file(const char *name, const char *what, const char *todo)
{
    const char *file = strstr(todo, "%s");
    int before = file ? (int)(file - todo) : (int)strlen(todo);
    return status_fail(STATUS_FAILED, "%s: this is %s, not UTF-8 text: %.*s%s%s" ANYWAY, name, what, before, todo,
                       file ? name : "", file ? file + 2 : "");
}

/* Counts bytes invalid in UTF-8; the beginning may end within a character. */
static int64_t count_malformed(const char *bytes, int64_t length)
{
    int64_t count = 0;
    for (int64_t at = unicode_check(bytes, length); at < length; at += unicode_check(bytes + at, length - at)) {
        bool cut;
        int bad = unicode_malformed(bytes + at, length - at, &cut);
        if (cut)
            break;
        count += bad;
        at += bad;
    }
    return count;
}

status sniff_check(const char *name, const char *bytes, int64_t length, bool zeros)
{
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (length >= kinds[i].offset + kinds[i].length &&
            memcmp(bytes + kinds[i].offset, kinds[i].magic, (size_t)kinds[i].length) == 0)
            return refuse_file(name, kinds[i].what, kinds[i].todo);
    length = length < SNIFF_BYTES ? length : SNIFF_BYTES;
    if (length == 0)
        return STATUS_OK;
    if (!zeros && memchr(bytes, 0, (size_t)length))
        return refuse_file(name, "a binary file", "extract its text, or write it as JSON-lines");
    /* some damage is common in collected text, and is replaced; letters of another encoding, which come every few
     * words, and binary data exceed this limit */
    if (count_malformed(bytes, length) * 200 > length + 200)
        return refuse_file(name, "in another encoding, or binary", TO_UTF8("ISO-8859-1") ", if that is its encoding");
    int64_t controls = 0; /* that text lacks: all below a space but tab, line and page ends, backspace and escape */
    for (int64_t i = 0; i < length; i++)
        controls += (uint8_t)bytes[i] < 0x20 && !strchr("\b\t\n\v\f\r\x1B", bytes[i]);
    if (!zeros && controls * 50 > length + 50)
        return refuse_file(name, "a binary file", "extract its text, or write it as JSON-lines");
    return STATUS_OK;
}

static int64_t skip_blank(const char *bytes, int64_t at, int64_t length)
{
    while (at < length && bytes[at] && strchr(" \t\r\n", bytes[at]))
        at++;
    return at;
}

bool sniff_may_be_json_lines(const char *bytes, int64_t length)
{
    int64_t at = skip_blank(bytes, 0, length);
    if (at == length || bytes[at] != '{')
        return false;
    at = skip_blank(bytes, at + 1, length);
    return at < length && bytes[at] == '"';
}

bool sniff_is_json_array(const char *bytes, int64_t length)
{
    int64_t at = skip_blank(bytes, 0, length);
    if (at == length || bytes[at] != '[')
        return false;
    at = skip_blank(bytes, at + 1, length);
    return at < length && sniff_may_be_json_lines(bytes + at, length - at);
}
