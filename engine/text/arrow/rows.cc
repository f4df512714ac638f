/* libphalanx_parquet.so: rows of a column of text in Parquet files, Arrow files and Arrow streams, by Apache's C++
 * libraries. C sees only columns_arrow (../columns_reader.h); exceptions and statuses end here.
 *
 * Parquet is read by its low-level interface: a page of one column at a time, with its values used in place. A file's
 * own numbers decide how much memory that takes, so all of it comes from a pool with a limit.
 */
#include "engine/text/columns_reader.h"

#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <arrow/ipc/api.h>
#include <arrow/util/config.h>
#include <parquet/api/reader.h>
#include <parquet/api/schema.h>

#ifdef __clang__
#pragma clang diagnostic ignored "-Winconsistent-missing-override" /* older libraries lack `override` */
#endif

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace
{

constexpr int64_t BLOCK_ROWS = 1024;
constexpr int64_t READ_BYTES = 1 << 18;
constexpr size_t MOST_NAMED = 16; /* columns that a message names */

/* An own failure, as a sentence; the libraries' failures are another exception. */
struct failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

static void must(const arrow::Status &s)
{
    if (!s.ok())
        throw std::runtime_error(s.message());
}

template <typename T> T must(arrow::Result<T> r)
{
    must(r.status());
    return std::move(r).ValueUnsafe();
}

/* ---- memory and bytes ---- */

class bounded_pool : public arrow::ProxyMemoryPool
{
  public:
    bounded_pool() : ProxyMemoryPool(arrow::system_memory_pool())
    {
    }

    using MemoryPool::Allocate;
    using MemoryPool::Reallocate;

    arrow::Status Allocate(int64_t size, int64_t alignment, uint8_t **out) override
    {
        ARROW_RETURN_NOT_OK(check(size));
        return ProxyMemoryPool::Allocate(size, alignment, out);
    }

    arrow::Status Reallocate(int64_t old_size, int64_t new_size, int64_t alignment, uint8_t **at) override
    {
        ARROW_RETURN_NOT_OK(check(new_size - old_size));
        return ProxyMemoryPool::Reallocate(old_size, new_size, alignment, at);
    }

  private:
    arrow::Status check(int64_t more) const
    {
        if (more <= COLUMNS_MOST_BYTES - bytes_allocated())
            return arrow::Status::OK();
        return arrow::Status::OutOfMemory("a page or a batch of this file wants ", more >> 20, " MiB beyond ",
                                          bytes_allocated() >> 20, ": more than the ", COLUMNS_MOST_BYTES >> 20,
                                          " MiB a file may take (write it with smaller ones, or it is damaged)");
    }
};

/* The caller's file, as a file of the libraries. */
class host_file : public arrow::io::RandomAccessFile
{
  public:
    host_file(const columns_file &file, arrow::MemoryPool *pool) : file_(file), pool_(pool)
    {
        set_mode(arrow::io::FileMode::READ);
    }

    using RandomAccessFile::ReadAt;

    arrow::Status Close() override
    {
        closed_ = true;
        return arrow::Status::OK();
    }

    bool closed() const override
    {
        return closed_;
    }

    arrow::Result<int64_t> Tell() const override
    {
        return at_;
    }

    arrow::Status Seek(int64_t position) override
    {
        if (position < 0)
            return arrow::Status::IOError("a place before the file's beginning");
        at_ = position;
        return arrow::Status::OK();
    }

    arrow::Result<int64_t> GetSize() override
    {
        return file_.size;
    }

    arrow::Result<int64_t> ReadAt(int64_t position, int64_t bytes, void *out) override
    {
        if (position < 0 || bytes < 0)
            return arrow::Status::IOError("a place outside of the file");
        const int64_t there = std::min(bytes, std::max<int64_t>(file_.size - position, 0));
        if (there > 0 && file_.read(file_.context, out, position, there) != 0)
            return arrow::Status::IOError("it cannot be read");
        return there;
    }

    arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t bytes) override
    {
        /* a size from the file counts only once checked against the file */
        const int64_t there = std::min(bytes, std::max<int64_t>(file_.size - std::max<int64_t>(position, 0), 0));
        if (there < 0)
            return arrow::Status::IOError("a place outside of the file");
        ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(there, pool_));
        ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(position, there, buffer->mutable_data()));
        ARROW_RETURN_NOT_OK(buffer->Resize(got));
        return std::shared_ptr<arrow::Buffer>(std::move(buffer));
    }

    arrow::Result<int64_t> Read(int64_t bytes, void *out) override
    {
        ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(at_, bytes, out));
        at_ += got;
        return got;
    }

    arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t bytes) override
    {
        ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(at_, bytes));
        at_ += buffer->size();
        return buffer;
    }

    /* Reads at once, in the caller's thread: the libraries' own threads would still hold the file and its memory after
     * the caller has closed it. Older libraries know the first only. */
    arrow::Future<std::shared_ptr<arrow::Buffer>> ReadAsync(const arrow::io::IOContext &, int64_t position,
                                                            int64_t bytes) override
    {
        return arrow::Future<std::shared_ptr<arrow::Buffer>>::MakeFinished(ReadAt(position, bytes));
    }

    virtual arrow::Future<std::shared_ptr<arrow::Buffer>> ReadAsync(const arrow::io::IOContext &, int64_t position,
                                                                    int64_t bytes, bool short_read)
    {
        auto read = ReadAt(position, bytes);
        if (read.ok() && !short_read && (*read)->size() < bytes)
            read = arrow::Status::IOError("the file ends within what it announces");
        return arrow::Future<std::shared_ptr<arrow::Buffer>>::MakeFinished(std::move(read));
    }

  private:
    columns_file file_;
    arrow::MemoryPool *pool_;
    int64_t at_ = 0;
    bool closed_ = false;
};

/* ---- common parts ---- */

class rows
{
  public:
    virtual ~rows() = default;

    /* Returns -1: the file does not say. */
    virtual int64_t count() const
    {
        return -1;
    }

    virtual void select(int64_t, int64_t)
    {
        throw failure("this file does not say how many rows it has");
    }

    virtual void next(columns_block *block) = 0;

  protected:
    void give(columns_block *block, int64_t first, double done) const
    {
        *block = {static_cast<int64_t>(text_.size()), first, text_.data(), length_.data(), done};
    }

    void clear()
    {
        text_.clear();
        length_.clear();
    }

    void append(const void *text, int64_t length)
    {
        text_.push_back(text ? static_cast<const char *>(text) : "");
        length_.push_back(length);
    }

    void append_null()
    {
        text_.push_back(nullptr);
        length_.push_back(0);
    }

  private:
    std::vector<const char *> text_;
    std::vector<int64_t> length_;
};

/* A file's columns, by name and type, for the message that one is missing or no text. */
using column_list = std::vector<std::pair<std::string, std::string>>;

static std::string named(const column_list &columns)
{
    std::string text;
    for (size_t i = 0; i < columns.size() && i < MOST_NAMED; i++)
        text += (i ? ", \"" : "\"") + columns[i].first.substr(0, 40) + "\" (" + columns[i].second.substr(0, 40) + ")";
    if (columns.size() > MOST_NAMED)
        text += " and " + std::to_string(columns.size() - MOST_NAMED) + " others";
    return columns.empty() ? "no columns" : text;
}

/* Returns the index of the one column of that name. */
static int find_column(const column_list &columns, const std::string &field)
{
    int found = -1;
    for (size_t i = 0; i < columns.size(); i++)
        if (columns[i].first == field) {
            if (found >= 0)
                throw failure("more than one column is called \"" + field + "\": write the file with one");
            found = static_cast<int>(i);
        }
    if (found < 0)
        throw failure("no column \"" + field + "\" (--field names another); it has " + named(columns));
    return found;
}

[[noreturn]] static void refuse_type(const column_list &columns, int column)
{
    const auto &[name, type] = columns[static_cast<size_t>(column)];
    throw failure("the column \"" + name + "\" is " + type + ", no text (--field names another); it has " +
                  named(columns));
}

/* ---- Parquet ---- */

using parquet::schema::GroupNode;
using parquet::schema::Node;

static std::string parquet_type(const Node &node)
{
    if (node.is_group()) {
        const bool list = node.logical_type() && node.logical_type()->is_list();
        const bool map = node.logical_type() && node.logical_type()->is_map();
        return list ? "nested: a list" : map ? "nested: a map" : "nested: a struct";
    }
    std::string type = parquet::TypeToString(static_cast<const parquet::schema::PrimitiveNode &>(node).physical_type());
    if (node.logical_type() && !node.logical_type()->is_none())
        type = node.logical_type()->ToString();
    return node.is_repeated() ? "nested: a list of " + type : type;
}

/* True for strings, and for bytes without a logical type: older writers leave out the type of strings. */
static bool parquet_is_text(const Node &node)
{
    if (node.is_group() || node.is_repeated() ||
        static_cast<const parquet::schema::PrimitiveNode &>(node).physical_type() != parquet::Type::BYTE_ARRAY)
        return false;
    const auto &type = node.logical_type();
    return !type || type->is_none() || type->is_string() || type->is_JSON() || type->is_enum();
}

class parquet_rows : public rows
{
  public:
    parquet_rows(const std::shared_ptr<host_file> &file, arrow::MemoryPool *pool, const std::string &field)
    {
        parquet::ReaderProperties properties(pool);
        properties.enable_buffered_stream(); /* else a whole column of a row group is read at once */
        properties.set_buffer_size(READ_BYTES);
        properties.set_page_checksum_verification(true);
        file_ = parquet::ParquetFileReader::Open(file, properties);
        const auto *schema = file_->metadata()->schema();
        const GroupNode &root = *schema->group_node();
        column_list columns;
        for (int i = 0; i < root.field_count(); i++)
            columns.emplace_back(root.field(i)->name(), parquet_type(*root.field(i)));
        const int top = find_column(columns, field);
        if (!parquet_is_text(*root.field(top)))
            refuse_type(columns, top);
        column_ = schema->ColumnIndex(*root.field(top));
        optional_ = schema->Column(column_)->max_definition_level() > 0;
        for (int i = 0; i < file_->metadata()->num_row_groups(); i++) {
            const int64_t held = file_->metadata()->RowGroup(i)->num_rows();
            if (held < 0 || held > INT64_MAX / 2 - count_)
                throw failure("row group " + std::to_string(i) + " says that it has " + std::to_string(held) + " rows");
            count_ += held;
        }
        end_ = count_;
    }

    int64_t count() const override
    {
        return count_;
    }

    void select(int64_t first, int64_t end) override
    {
        row_ = first;
        end_ = end;
    }

    void next(columns_block *block) override
    {
        clear();
        while (row_ < end_ && (!values_ || row_ == group_end_))
            open_group();
        const int64_t first = row_;
        if (row_ < end_)
            read_values(std::min(std::min(end_, group_end_) - row_, BLOCK_ROWS));
        give(block, first, count_ ? static_cast<double>(row_) / static_cast<double>(count_) : 1.0);
    }

  private:
    /* Moves to the group of the next row, or one towards it, and in it to the row. */
    void open_group()
    {
        const auto metadata = file_->metadata();
        values_.reset();
        for (int64_t begin = group_end_;; begin = group_end_) {
            group_end_ += metadata->RowGroup(++group_)->num_rows();
            if (row_ < group_end_) {
                in_group_ = file_->RowGroup(group_);
                values_ = std::dynamic_pointer_cast<parquet::ByteArrayReader>(in_group_->Column(column_));
                if (!values_)
                    throw failure("the column's type is not the same in all row groups");
                skip(row_ - begin);
                return;
            }
        }
    }

    void skip(int64_t left)
    {
        while (left > 0) {
            const int64_t now = values_->Skip(left);
            if (now <= 0)
                throw failure(short_group());
            left -= now;
        }
    }

    std::string short_group() const
    {
        return "row group " + std::to_string(group_) + " ends before row " + std::to_string(row_) +
               ", which it should hold: the file is damaged";
    }

    void read_values(int64_t wanted)
    {
        int64_t found = 0;
        const int64_t got = values_->ReadBatch(wanted, levels_, nullptr, arrays_, &found);
        if (got <= 0 || got > wanted || found < 0 || found > got || (!optional_ && found != got))
            throw failure(short_group());
        int64_t used = 0;
        for (int64_t i = 0; i < got; i++)
            if (!optional_ || levels_[i] == 1) {
                if (used == found)
                    throw failure(short_group());
                append(arrays_[used].ptr, arrays_[used].len);
                used++;
            } else {
                append_null();
            }
        row_ += got;
    }

    std::unique_ptr<parquet::ParquetFileReader> file_;
    std::shared_ptr<parquet::RowGroupReader> in_group_;
    std::shared_ptr<parquet::ByteArrayReader> values_; /* reads the current group; NULL: none */
    int column_ = 0, group_ = -1;
    bool optional_ = false;
    int64_t count_ = 0, row_ = 0, end_ = 0, group_end_ = 0; /* row_: the next; group_end_: of group_ */
    int16_t levels_[BLOCK_ROWS];                            /* 1: a value, 0: null */
    parquet::ByteArray arrays_[BLOCK_ROWS];
};

/* ---- Arrow ---- */

/* Returns the type as bytes, which are not checked for UTF-8: a malformed record is one bad record, not a bad file.
 * NULL: no text. */
static std::shared_ptr<arrow::DataType> as_bytes(const arrow::DataType &type)
{
    switch (type.id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
        return arrow::binary();
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
        return arrow::large_binary();
#if ARROW_VERSION_MAJOR >= 15
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
        return arrow::binary_view();
#endif
    default:
        return nullptr;
    }
}

/* Returns the type of the values, without a dictionary and an extension's name. */
static const arrow::DataType &values_type(const arrow::DataType &type)
{
    if (type.id() == arrow::Type::EXTENSION)
        return values_type(*static_cast<const arrow::ExtensionType &>(type).storage_type());
    if (type.id() == arrow::Type::DICTIONARY)
        return values_type(*static_cast<const arrow::DictionaryType &>(type).value_type());
    return type;
}

class arrow_rows : public rows
{
  protected:
    /* Finds the column of text. */
    static int find_text(const arrow::Schema &schema, const std::string &field)
    {
        column_list columns;
        for (const auto &f : schema.fields())
            columns.emplace_back(f->name(), (f->type()->num_fields() > 0 ? "nested: " : "") + f->type()->ToString());
        const int column = find_column(columns, field);
        const auto &type = *schema.field(column)->type();
        if (!as_bytes(values_type(type)) && type.id() != arrow::Type::NA)
            refuse_type(columns, column);
        return column;
    }

    arrow::ipc::IpcReadOptions options(arrow::MemoryPool *pool, int column) const
    {
        auto o = arrow::ipc::IpcReadOptions::Defaults();
        o.memory_pool = pool;
        o.use_threads = false;
        o.included_fields = {column};
        return o;
    }

    /* Returns the next batch, or none at the end; *done: the share of the file that lies before its end. */
    virtual std::shared_ptr<arrow::RecordBatch> next_batch(double *done) = 0;

  public:
    void next(columns_block *block) override
    {
        clear();
        while (!ended_ && (!batch_ || at_ == batch_->num_rows()))
            open_batch();
        const int64_t first = row_, end = ended_ ? 0 : std::min(at_ + BLOCK_ROWS, batch_->num_rows());
        for (; !ended_ && at_ < end; at_++, row_++)
            append_value(at_);
        give(block, first, done_);
    }

  private:
    void open_batch()
    {
        at_ = 0;
        batch_.reset(); /* frees it before the next one is made */
        values_.reset();
        indices_.reset();
        batch_ = next_batch(&done_);
        ended_ = !batch_;
        if (batch_)
            open_column(batch_->column(0));
    }

    void open_column(std::shared_ptr<arrow::Array> column)
    {
        while (column->type_id() == arrow::Type::EXTENSION)
            column = static_cast<const arrow::ExtensionArray &>(*column).storage();
        column_ = column;
        must(column->Validate());
        if (column->type_id() == arrow::Type::DICTIONARY) {
            const auto &coded = static_cast<const arrow::DictionaryArray &>(*column);
            indices_ = coded.indices();
            must(indices_->ValidateFull());
            column = coded.dictionary();
        }
        while (column->type_id() == arrow::Type::EXTENSION)
            column = static_cast<const arrow::ExtensionArray &>(*column).storage();
        if (column->type_id() == arrow::Type::NA)
            return;
        const auto type = as_bytes(*column->type());
        if (!type)
            throw failure("the column's type is not that of the schema");
        auto data = column->data()->Copy();
        data->type = type;
        values_ = arrow::MakeArray(data);
        must(values_->ValidateFull()); /* checks that the file's offsets lie within its bytes */
    }

    void append_value(int64_t row)
    {
        int64_t at = row;
        if (!values_ || column_->IsNull(row))
            return append_null();
        if (indices_) {
            at = static_cast<const arrow::DictionaryArray &>(*column_).GetValueIndex(row);
            if (at < 0 || at >= values_->length())
                throw failure("row " + std::to_string(row_) + " is beyond its dictionary");
            if (values_->IsNull(at))
                return append_null();
        }
        switch (values_->type_id()) {
        case arrow::Type::BINARY:
            return append_view(static_cast<const arrow::BinaryArray &>(*values_).GetView(at));
        case arrow::Type::LARGE_BINARY:
            return append_view(static_cast<const arrow::LargeBinaryArray &>(*values_).GetView(at));
#if ARROW_VERSION_MAJOR >= 15
        case arrow::Type::BINARY_VIEW:
            return append_view(static_cast<const arrow::BinaryViewArray &>(*values_).GetView(at));
#endif
        default:
            throw failure("the column is no text");
        }
    }

    void append_view(std::string_view text)
    {
        append(text.data(), static_cast<int64_t>(text.size()));
    }

    std::shared_ptr<arrow::RecordBatch> batch_;
    std::shared_ptr<arrow::Array> column_, values_, indices_; /* values_: as bytes, perhaps of a dictionary */
    bool ended_ = false;
    int64_t at_ = 0, row_ = 0; /* at_: in the batch */
    double done_ = 0;
};

class arrow_file_rows : public arrow_rows
{
  public:
    arrow_file_rows(const std::shared_ptr<host_file> &file, arrow::MemoryPool *pool, const std::string &field)
    {
        auto plain = arrow::ipc::IpcReadOptions::Defaults();
        plain.memory_pool = pool;
        const auto schema = must(arrow::ipc::RecordBatchFileReader::Open(file, plain))->schema();
        reader_ = must(arrow::ipc::RecordBatchFileReader::Open(file, options(pool, find_text(*schema, field))));
    }

  private:
    std::shared_ptr<arrow::RecordBatch> next_batch(double *done) override
    {
        const int batches = reader_->num_record_batches();
        if (number_ >= batches)
            return nullptr;
        *done = static_cast<double>(number_ + 1) / batches;
        return must(reader_->ReadRecordBatch(number_++));
    }

    std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader_;
    int number_ = 0;
};

class arrow_stream_rows : public arrow_rows
{
  public:
    arrow_stream_rows(const std::shared_ptr<host_file> &file, arrow::MemoryPool *pool, const std::string &field)
        : file_(file), size_(must(file->GetSize()))
    {
        auto plain = arrow::ipc::IpcReadOptions::Defaults();
        plain.memory_pool = pool;
        const auto schema = must(arrow::ipc::RecordBatchStreamReader::Open(file, plain))->schema();
        must(file->Seek(0));
        reader_ = must(arrow::ipc::RecordBatchStreamReader::Open(file, options(pool, find_text(*schema, field))));
    }

  private:
    std::shared_ptr<arrow::RecordBatch> next_batch(double *done) override
    {
        std::shared_ptr<arrow::RecordBatch> batch;
        must(reader_->ReadNext(&batch));
        *done = static_cast<double>(must(file_->Tell())) / static_cast<double>(std::max<int64_t>(size_, 1));
        return batch;
    }

    std::shared_ptr<host_file> file_;
    int64_t size_;
    std::shared_ptr<arrow::ipc::RecordBatchStreamReader> reader_;
};

/* ---- the C interface ---- */

/* Catches every exception before it reaches C. */
template <typename Body> int guarded(char *message, Body body) noexcept
{
    try {
        body();
        return 0;
    } catch (const failure &f) {
        std::snprintf(message, COLUMNS_MESSAGE_BYTES, "%s", f.what());
    } catch (const std::bad_alloc &) {
        std::snprintf(message, COLUMNS_MESSAGE_BYTES, "out of host memory");
    } catch (const std::exception &e) {
        std::snprintf(message, COLUMNS_MESSAGE_BYTES, "cannot be read: %s", e.what());
    } catch (...) {
        std::snprintf(message, COLUMNS_MESSAGE_BYTES, "cannot be read");
    }
    return 1;
}

static std::unique_ptr<rows> open_rows(const columns_file &file, arrow::MemoryPool *pool, const std::string &field)
{
    char magic[6] = "";
    const auto bytes = std::make_shared<host_file>(file, pool);
    must(bytes->ReadAt(0, sizeof magic, magic).status());
    if (std::memcmp(magic, "PAR1", 4) == 0)
        return std::make_unique<parquet_rows>(bytes, pool, field);
    if (std::memcmp(magic, "ARROW1", 6) == 0)
        return std::make_unique<arrow_file_rows>(bytes, pool, field);
    return std::make_unique<arrow_stream_rows>(bytes, pool, field);
}

static int open_reader(void **out, int64_t *count, const columns_file *file, const char *field, char *message)
{
    return guarded(message, [&] {
        static bounded_pool *const pool = new bounded_pool; /* never destroyed, so that it outlives all users */
        auto made = open_rows(*file, pool, field);
        *count = made->count();
        *out = made.release();
    });
}

static int select_rows(void *opaque, int64_t first, int64_t end, char *message)
{
    return guarded(message, [&] { static_cast<rows *>(opaque)->select(first, end); });
}

static int next_block(void *opaque, columns_block *block, char *message)
{
    return guarded(message, [&] { static_cast<rows *>(opaque)->next(block); });
}

static void close_reader(void *opaque)
{
    char message[COLUMNS_MESSAGE_BYTES];
    (void)guarded(message, [&] { delete static_cast<rows *>(opaque); });
}

} // namespace

const columns_reader columns_arrow = {COLUMNS_VERSION, open_reader, select_rows, next_block, close_reader};
