#include "text/chat_template.h"

#include "common/strings.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"
#include "text/json_fields.h"
#include "text/tokenizer_parts.h"

namespace aisp {

struct ChatTemplate::Program {
  jinja::Block block;
};

ChatTemplate::ChatTemplate(std::string source, std::unique_ptr<const Program> program)
    : source_(std::move(source)), program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  auto program = std::make_unique<Program>();
  AISP_ASSIGN_OR_RETURN(program->block, jinja::ParseTemplate(source));
  return ChatTemplate(std::string(source), std::move(program));
}

Result<ChatTemplate> ChatTemplate::Load(const std::string& model_folder) {
  const std::string path = model_folder + "/chat_template.jinja";
  auto source = ReadFile(path, jinja::kMaxTemplateBytes);
  if (source) {
    auto parsed = Parse(*source);
    if (!parsed) return tl::unexpected(parsed.error().WithContext(path));
    return parsed;
  }
  if (source.error().code != Code::kNotFound) return tl::unexpected(source.error());
  const std::string config_path = model_folder + "/tokenizer_config.json";
  AISP_ASSIGN_OR_RETURN(const std::string config, ReadFile(config_path, kMaxTokenizerFileBytes));
  auto document = ParseJsonObject(config);
  if (!document) return tl::unexpected(document.error().WithContext(config_path));
  const JsonField field = JsonField(&*document, "").At("chat_template");
  JsonField chosen = field;
  for (const JsonField& entry : field.Elements()) {
    if (entry.At("name").IsString() && entry.At("name").value() == "default")
      chosen = entry.At("template");
  }
  if (!chosen.IsString())
    return NotFound("no chat_template.jinja in " + model_folder + " and no chat_template in " +
                    config_path);
  auto parsed = Parse(chosen.value().get_ref<const std::string&>());
  if (!parsed) return tl::unexpected(parsed.error().WithContext(config_path));
  return parsed;
}

Result<std::string> ChatTemplate::Render(const Value::Map& context,
                                         const RenderOptions& options) const {
  if (context.depth() > jinja::kMaxValueDepth) {
    return InvalidArgument("chat template context is nested " + std::to_string(context.depth()) +
                           " deep; the limit is " + std::to_string(jinja::kMaxValueDepth));
  }
  return jinja::Interpreter(context, options).Run(program_->block);
}

}  // namespace aisp
