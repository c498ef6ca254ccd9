# cmake -DOUT=page_files.cc -DHEADER=server/page_files.h -DNAMES=kA,kB -DFILES=a,b -P Embed.cmake
# Writes a source file that holds the text of FILES as std::string_view constants. Only MSVC limits
# the length of string literals, so each file is one raw literal.
string(REPLACE "," ";" NAMES "${NAMES}")
string(REPLACE "," ";" FILES "${FILES}")
set(text "#include \"${HEADER}\"\n\nnamespace aisp {\n\n")
list(LENGTH NAMES count)
math(EXPR last "${count} - 1")
foreach(i RANGE ${last})
  list(GET NAMES ${i} name)
  list(GET FILES ${i} file)
  file(READ "${file}" content)
  string(APPEND text "const std::string_view ${name} = R\"AISP_TEXT(${content})AISP_TEXT\";\n\n")
endforeach()
string(APPEND text "}  // namespace aisp\n")
file(WRITE "${OUT}" "${text}")
