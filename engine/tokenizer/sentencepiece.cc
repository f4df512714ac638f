extern "C" {
#include "engine/tokenizer/sentencepiece_model.h"
#include "memory/status.h"
}

#include "engine/tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <exception>
#include <string>
#include <unordered_map>
#include <vector>

struct sentencepiece_processor {
    ::sentencepiece::SentencePieceProcessor processor;
};

namespace
{

using ::sentencepiece::util::Status;

/* Cuts the library's "Internal: file.cc(660) [condition] reason" down to the reason, which is for people. */
std::string one_line(std::string text)
{
    const size_t bracket = text.rfind("] ");
    if (bracket != std::string::npos && bracket + 2 < text.size())
        text.erase(0, bracket + 2);
    for (char &c : text)
        if (c == '\n' || c == '\r')
            c = ' ';
    return text;
}

status failed(const char *what, const std::string &why)
{
    return status_fail(STATUS_FAILED, "%s: %s", what, one_line(why).c_str());
}

/* Catches every exception before it reaches C. */
template <typename Body> status guarded(const char *what, Body body)
{
    try {
        const Status s = body();
        return s.ok() ? STATUS_OK : failed(what, s.ToString());
    } catch (const std::exception &e) {
        return failed(what, e.what());
    } catch (...) {
        return failed(what, "unknown failure");
    }
}

class Sentences : public ::sentencepiece::SentenceIterator
{
  public:
    Sentences(sentencepiece_next *next, void *context) : next_(next), context_(context)
    {
        Next();
    }
    bool done() const override
    {
        return done_;
    }
    void Next() override
    {
        const char *text = nullptr;
        int64_t length = 0;
        done_ = !next_(context_, &text, &length);
        if (!done_)
            value_.assign(text, static_cast<size_t>(length));
    }
    const std::string &value() const override
    {
        return value_;
    }
    Status status() const override
    {
        return Status();
    }

  private:
    sentencepiece_next *next_;
    void *context_;
    std::string value_;
    bool done_ = false;
};

} // namespace

extern "C" {

status sentencepiece_open(sentencepiece_processor **out, const void *bytes, int64_t length, const char *name)
{
    sentencepiece_processor *p = nullptr;
    const status s = guarded(name, [&] {
        p = new sentencepiece_processor;
        return p->processor.LoadFromSerializedProto(
            std::string(static_cast<const char *>(bytes), static_cast<size_t>(length)));
    });
    if (s != STATUS_OK) {
        delete p;
        return s;
    }
    *out = p;
    return STATUS_OK;
}

void sentencepiece_close(sentencepiece_processor *p)
{
    delete p;
}

status sentencepiece_encode(const sentencepiece_processor *p, buffer_ids *out, const char *text, int64_t length)
{
    return guarded("SentencePiece", [&] {
        thread_local std::vector<int> ids;
        const Status s = p->processor.Encode(absl::string_view(text, static_cast<size_t>(length)), &ids);
        if (s.ok())
            buffer_ids_append(out, ids.data(), static_cast<int64_t>(ids.size()));
        return s;
    });
}

sentencepiece_ids sentencepiece_reserved(const sentencepiece_processor *p)
{
    return {p->processor.unk_id(), p->processor.bos_id(), p->processor.eos_id(), p->processor.pad_id()};
}

status sentencepiece_train(buffer *model, const sentencepiece_training *how, sentencepiece_next *next, void *context)
{
    const std::unordered_map<std::string, std::string> settings = {
        {"vocab_size", std::to_string(how->vocab_size)},
        {"model_type", how->type},
        {"input_sentence_size", std::to_string(how->most_sentences)},
        {"shuffle_input_sentence", "true"},
        {"num_threads", std::to_string(how->threads)},
        {"character_coverage", "0.9995"},
        {"byte_fallback", "true"},
        {"split_digits", "true"},
        {"allow_whitespace_only_pieces", "true"},
        {"normalization_rule_name", "identity"},
        {"remove_extra_whitespaces", "false"},
        {"unk_id", "0"},
        {"bos_id", "1"},
        {"eos_id", "2"},
        {"pad_id", "-1"},
        {"minloglevel", "2"},
    };
    const status trained = guarded("training SentencePiece", [&] {
        ::sentencepiece::SetRandomGeneratorSeed(1);
        Sentences sentences(next, context);
        std::string bytes;
        const Status s = ::sentencepiece::SentencePieceTrainer::Train(settings, &sentences, &bytes);
        if (s.ok()) {
            model->length = 0;
            buffer_append(model, bytes.data(), static_cast<int64_t>(bytes.size()));
        }
        return s;
    });
    return trained == STATUS_OK ? sentencepiece_model_round(model->bytes, model->length, "the trained model") : trained;
}

} // extern "C"
