// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/docs"
)

// commandLine is one simple command in a block of shell, split into unquoted words.
type commandLine struct {
	line  int
	words []string
}

// commandLines returns the commands in a block. A script consists of commands only; a terminal
// session has them after prompts. An indented block may contain anything, so only lines that begin
// with berth or pipe into it count.
func commandLines(block docs.Block) (all []commandLine) {
	text := strings.Join(block.Lines, "\n")
	switch block.Language {
	case "sh", "bash", "shell":
	case "console":
		text = prompted(block.Lines)
	case "":
		text = strings.Join(withBerth(block.Lines), "\n")
	default:
		return nil
	}
	s := &shell{text: text, line: block.Line}
	s.read("")
	return s.found
}

// prompted keeps the lines after a prompt and their continuations.
func prompted(lines []string) string {
	kept := make([]string, len(lines))
	goesOn := false
	for i, line := range lines {
		command, prompt := strings.CutPrefix(line, "$ ")
		if prompt || goesOn {
			kept[i] = command
			goesOn = strings.HasSuffix(command, `\`)
		}
	}
	return strings.Join(kept, "\n")
}

func withBerth(lines []string) []string {
	kept := make([]string, len(lines))
	goesOn := false
	for i, line := range lines {
		if line = strings.TrimPrefix(line, "$ "); goesOn || strings.HasPrefix(line, "berth ") || strings.Contains(line, "| berth ") {
			kept[i] = line
			goesOn = strings.HasSuffix(line, `\`)
		}
	}
	return kept
}

// shell parses the subset of the shell language used by the pages: quotes, comments, pipes and
// lists, substitutions, redirections, here documents. It does not perform expansions.
type shell struct {
	text  string
	at    int
	line  int
	found []commandLine

	words  []string
	word   strings.Builder
	began  bool   // a possibly empty word has begun
	target bool   // the next word is the target of a redirection
	here   string // terminator of the here document starting on the next line
}

// read parses up to the end of the text, or up to the next unquoted until.
func (s *shell) read(until string) {
	for s.at < len(s.text) {
		rest := s.text[s.at:]
		switch c := rest[0]; {
		case until != "" && strings.HasPrefix(rest, until):
			s.end()
			s.at += len(until)
			return
		case strings.HasPrefix(rest, "\\\n"):
			s.endWord()
			s.skip(2)
		case c == '\\' && len(rest) > 1:
			s.put(rest[1:2])
			s.skip(2)
		case c == '\'':
			s.quoted(rest)
		case c == '"':
			s.doubleQuoted()
		case strings.HasPrefix(rest, "$(") && !strings.HasPrefix(rest, "$(("):
			s.substituted()
		case c == '#' && !s.began:
			s.skip(len(rest) - len(strings.TrimLeftFunc(rest, func(r rune) bool { return r != '\n' })))
		case c == '<' || c == '>':
			s.redirected(rest)
		case strings.ContainsRune("\n;|&()", rune(c)):
			s.end()
			s.skip(1)
			if c == '\n' {
				s.hereDocument()
			}
		case c == ' ' || c == '\t':
			s.endWord()
			s.skip(1)
		default:
			s.put(rest[:1])
			s.skip(1)
		}
	}
	s.end()
}

func (s *shell) skip(n int) {
	s.line += strings.Count(s.text[s.at:s.at+n], "\n")
	s.at += n
}

func (s *shell) put(text string) {
	s.word.WriteString(text)
	s.began = true
}

func (s *shell) quoted(rest string) {
	end := strings.IndexByte(rest[1:], '\'')
	if end < 0 {
		end = len(rest) - 2
	}
	s.put(rest[1 : 1+end])
	s.skip(end + 2)
}

func (s *shell) doubleQuoted() {
	s.put("")
	for s.skip(1); s.at < len(s.text); {
		rest := s.text[s.at:]
		switch {
		case rest[0] == '"':
			s.skip(1)
			return
		case rest[0] == '\\' && len(rest) > 1:
			s.put(rest[1:2])
			s.skip(2)
		case strings.HasPrefix(rest, "$("):
			s.substituted()
		default:
			s.put(rest[:1])
			s.skip(1)
		}
	}
}

// substituted reads the commands in $(...) like any others, and replaces them with $ in the word.
func (s *shell) substituted() {
	inner := &shell{text: s.text, at: s.at + 2, line: s.line}
	inner.read(")")
	s.found = append(s.found, inner.found...)
	s.put("$")
	s.at, s.line = inner.at, inner.line
}

// redirected consumes the operator; the word after it is not an argument.
func (s *shell) redirected(rest string) {
	if word := s.word.String(); strings.Trim(word, "0123456789") == "" {
		s.word.Reset()
		s.began = false
	}
	s.endWord()
	operator := rest[:len(rest)-len(strings.TrimLeft(rest, "<>&|-"))]
	s.skip(len(operator))
	if operator == "<(" || strings.HasPrefix(s.text[s.at:], "(") { // commands in <(...) are read like any others
		return
	}
	if operator == "<<" || operator == "<<-" {
		end, _, _ := strings.Cut(s.text[s.at:], "\n")
		if fields := strings.Fields(end); len(fields) > 0 {
			s.here = strings.Trim(fields[0], `'"`)
		}
	}
	s.target = true
}

func (s *shell) hereDocument() {
	if s.here == "" {
		return
	}
	for s.at < len(s.text) {
		line, _, _ := strings.Cut(s.text[s.at:], "\n")
		s.skip(min(len(line)+1, len(s.text)-s.at))
		if strings.TrimLeft(line, "\t") == s.here {
			break
		}
	}
	s.here = ""
}

func (s *shell) endWord() {
	if s.began && !s.target {
		s.words = append(s.words, s.word.String())
	}
	if s.began {
		s.target = false
	}
	s.word.Reset()
	s.began = false
}

// keywords may precede a command.
var keywords = []string{"if", "then", "else", "elif", "while", "until", "do", "!", "{", "time"}

func (s *shell) end() {
	s.endWord()
	words := s.words
	for len(words) > 0 && (slices.Contains(keywords, words[0]) || assignment(words[0])) {
		words = words[1:]
	}
	if len(words) > 0 {
		s.found = append(s.found, commandLine{s.line, words})
	}
	s.words, s.target = nil, false
}

func assignment(word string) bool {
	name, _, found := strings.Cut(word, "=")
	return found && name != "" && !strings.ContainsAny(name, "-/. ")
}

func TestShellIsTakenApart(t *testing.T) {
	for _, row := range []struct{ script, want string }{
		{`a b 'c d' "e $f" g\ h`, `1[a b c d e $f g h]`},
		{"a \\\n  b # c\nd", "2[a b] 3[d]"},
		{`x=1 until ! a | b && c; do d & done`, `1[a] 1[b] 1[c] 1[d] 1[done]`},
		{`a > out 2>&1 < in b`, `1[a b]`},
		{"cat > f <<'END'\nberth no\nEND\nb", "1[cat] 4[b]"},
		{`test "$(a --b "c" | d)" = "e f"`, `1[a --b c] 1[d] 1[test $ = e f]`},
		{`k() { berth kubectl "$@"; }   # or`, `1[k] 1[berth kubectl $@] 1[}]`},
		{`diff <(a b) c`, `1[diff] 1[a b] 1[c]`},
	} {
		var got []string
		for _, line := range commandLines(docs.Block{Language: "sh", Line: 1, Lines: strings.Split(row.script, "\n")}) {
			got = append(got, strings.TrimSpace(string(rune('0'+line.line)))+"["+strings.Join(line.words, " ")+"]")
		}
		if strings.Join(got, " ") != row.want {
			t.Errorf("%s\nis  %s\nnot %s", row.script, strings.Join(got, " "), row.want)
		}
	}
	console := commandLines(docs.Block{Language: "console", Line: 1, Lines: []string{"$ a b \\", "  c", "output", "$ d"}})
	if len(console) != 2 || strings.Join(console[0].words, " ") != "a b c" || console[1].line != 4 {
		t.Errorf("what a terminal shows: %v", console)
	}
}
