// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// parseFlow reads JSON and similar YAML over any number of lines. It returns false for input that
// it does not support; the library then reads it, or finds the syntax error.
func parseFlow(t *tree, text string, line int32) bool {
	t.reset()
	f := flowParser{t: t, text: text, line: line, json: true}
	// A document with only white space is empty.
	if f.skipSpace(); f.pos == len(f.text) {
		return true
	}
	if !f.parseValue("", 0) {
		return false
	}
	f.skipSpace()
	return f.pos == len(f.text)
}

// flowParser reads {a: b, "c": [d, 'e']}. Within a block, the value must end on its line; as JSON,
// it may span several lines. As in blockParser, false means that the library must read the
// document.
type flowParser struct {
	t    *tree
	text string
	pos  int
	line int32
	json bool
}

// skipSpace skips white space. Within a block, it skips only spaces, and leaves tabs to the
// library.
func (f *flowParser) skipSpace() {
	for f.pos < len(f.text) {
		switch c := f.text[f.pos]; {
		case c == '\n' && f.json:
			f.line++
		case c == ' ', f.json && (c == '\t' || c == '\r'):
		default:
			return
		}
		f.pos++
	}
}

// peek returns the next byte; 0 at the end.
func (f *flowParser) peek() byte {
	if f.pos == len(f.text) {
		return 0
	}
	return f.text[f.pos]
}

// parseValue reads a value and adds it under a key.
func (f *flowParser) parseValue(key string, depth int) bool {
	// Bound recursion for input crafted to exhaust the stack; the library bounds it as well.
	if depth > maxDepth {
		return false
	}
	switch f.peek() {
	case 0:
		return false
	case '{':
		return f.parseCollection(node{kind: mappingNode, key: key, line: f.line}, '}', depth)
	case '[':
		return f.parseCollection(node{kind: sequenceNode, key: key, line: f.line}, ']', depth)
	}
	text, isQuoted, ok := f.parseScalar()
	if ok {
		f.t.add(node{key: key, text: text, quoted: isQuoted, line: f.line})
	}
	return ok
}

// parseCollection reads the members of a mapping or sequence up to its closing bracket. It leaves a
// trailing comma to the library.
func (f *flowParser) parseCollection(n node, end byte, depth int) bool {
	children := f.t.childrenOf(f.t.add(n))
	f.pos++
	if f.skipSpace(); f.peek() == end {
		f.pos++
		return true
	}

	for {
		key := ""
		// Only the values of a mapping have keys.
		if n.kind == mappingNode {
			var ok bool
			if key, ok = f.parseKey(); !ok {
				return false
			}
		}
		child := int32(len(f.t.nodes))
		if !f.parseValue(key, depth+1) {
			return false
		}
		// The child is linked only now, but it was added before its own children.
		children.appendChild(child)
		f.skipSpace()
		switch f.peek() {
		case ',':
			f.pos++
			f.skipSpace()
		case end:
			f.pos++
			return true
		default:
			return false
		}
	}
}

// parseKey reads a key and its colon. It leaves a merge key (<<) to the library.
func (f *flowParser) parseKey() (string, bool) {
	key, isQuoted, ok := f.parseScalar()
	if !ok || key == "<<" && !isQuoted {
		return "", false
	}
	if f.skipSpace(); f.peek() != ':' {
		return "", false
	}
	f.pos++
	// After a plain word, the colon must be followed by a space. After a quoted key, as in JSON, it
	// need not be.
	if next := f.peek(); !isQuoted && next != ' ' && !(f.json && next == '\n') {
		return "", false // a:b is one word
	}
	f.skipSpace()
	return key, true
}

// parseScalar reads a quoted string or a plain word. It leaves plain words with potentially special
// characters to the library.
func (f *flowParser) parseScalar() (text string, isQuoted, ok bool) {
	switch f.peek() {
	case '"', '\'':
		parse := parseQuoted
		if f.json && f.peek() == '"' {
			parse = parseJSONString
		}
		value, rest, ok := parse(f.text[f.pos:])
		if !ok || !f.json && strings.IndexByte(value, '\n') >= 0 {
			return "", true, false
		}
		f.pos = len(f.text) - len(rest)
		return value, true, true
	}

	// A plain word ends at an indicator of flow collections, or at a colon that ends a key.
	end := f.pos
	for end < len(f.text) && strings.IndexByte(",[]{}\n\"'", f.text[end]) < 0 &&
		!(f.text[end] == ':' && (end+1 == len(f.text) || strings.IndexByte(" \n,[]{}", f.text[end+1]) >= 0)) {
		end++
	}

	// Leave a quote within a word, and a word at the end of the text, to the library.
	if end == len(f.text) || f.text[end] == '"' || f.text[end] == '\'' {
		return "", false, false
	}
	// Spaces are allowed within a plain scalar, and before the comma that ends it.
	word := strings.TrimRight(f.text[f.pos:end], " \t\r")
	value, ok := parsePlain(word)
	if !ok || value != word || strings.ContainsAny(word, "\t#?") || word[0] == '-' && len(word) == 1 || word[0] == ':' {
		return "", false, false
	}

	f.pos = end
	return value, false, true
}

// parseJSONString reads a string by JSON's rules, including the escapes \/ and \u, and returns the
// text after it. A string without escapes is returned as a substring of the text, without a copy.
func parseJSONString(text string) (value, rest string, ok bool) {
	// Most strings are plain ASCII without escapes, and need a single pass.
	end, escapes, ascii := 1, false, true
	for end < len(text) && text[end] != '"' {
		switch c := text[end]; {
		case c == '\\':
			escapes = true
			end++
		case c < ' ':
			return "", "", false
		case c > '~':
			ascii = false
		}
		end++
	}

	// The string is unterminated or not UTF-8: let the library report it.
	if end >= len(text) || !ascii && !utf8.ValidString(text[:end]) {
		return "", "", false
	}
	value, rest = text[1:end], text[end+1:]
	if !escapes {
		return value, rest, true
	}
	err := json.Unmarshal([]byte(text[:end+1]), &value)
	return value, rest, err == nil
}

// splitKey finds "key: value" or "key:" at the beginning of a text. isKey reports whether the text
// has this form, and ok is false if only the library can decide. text must not be empty. For
// example:
//
//	image: nginx:1.27   -> image, nginx:1.27
//	http://a/b          -> no key: no space follows the colon
//	"a b": c            -> a b, c
//	<<: *base           -> ok is false
func splitKey(text string) (key, rest string, isKey, ok bool) {
	switch text[0] {
	case '"', '\'':
		value, after, ok := parseQuoted(text)
		if !ok {
			return "", "", false, false
		}
		after = strings.TrimLeft(after, " ")
		if after == "" || after[0] == '#' {
			return "", "", false, true
		}
		if after[0] != ':' || len(after) > 1 && after[1] != ' ' {
			return "", "", false, false
		}
		return value, strings.TrimLeft(after[1:], " "), true, true
	// These are indicators of YAML. {, [ and | begin values that parseScalar handles.
	case '{', '[', '|', '>', '&', '*', '!', '%', '@', '`', ',', ']', '}', '?', '#', ':':
		return "", "", false, text[0] == '{' || text[0] == '[' || text[0] == '|'
	}

	for i := range len(text) {
		switch text[i] {
		case '\t':
			return "", "", false, false
		// A # begins a comment only after a space. The text before a comment is not a key.
		case '#':
			if text[i-1] == ' ' {
				return "", "", false, true
			}
		case ':':
			// This colon is within a value, as in image: nginx:1.27, or in a URL.
			if i+1 < len(text) && text[i+1] != ' ' {
				continue
			}
			key = strings.TrimRight(text[:i], " ")
			// Leave these to the library: a merge key, an empty key, a key longer than YAML's
			// limit, and a dash of a sequence.
			if key == "<<" || key == "" || len(key) > 512 || isDash(key) {
				return "", "", false, false
			}
			return key, strings.TrimLeft(text[i+1:], " "), true, true
		}
	}

	return "", "", false, true
}

// parsePlain reads a scalar without quotes, up to a comment. It returns false for an empty text,
// and for text that may be more than a plain scalar, such as a key.
func parsePlain(text string) (string, bool) {
	if text == "" || strings.IndexByte(",[]{}#&*!|>'\"%@`", text[0]) >= 0 {
		return "", false
	}
	// These begin another construct only if a space follows: -1 is a scalar, and "- 1" is an item.
	if strings.IndexByte("-?:", text[0]) >= 0 && (len(text) == 1 || text[1] == ' ') {
		return "", false
	}
	// Drop a comment.
	if i := strings.Index(text, " #"); i >= 0 {
		text = strings.TrimRight(text[:i], " ")
	}
	if text == "" || strings.Contains(text, ": ") || text[len(text)-1] == ':' || strings.IndexByte(text, '\t') >= 0 {
		return "", false
	}
	return text, true
}

// parseQuoted reads a quoted scalar that ends on its line, and returns the rest of the line. In
// single quotes, the only escape is a doubled quote. In double quotes, the escapes are JSON's
// except \u, which YAML reads differently.
func parseQuoted(text string) (value, rest string, ok bool) {
	if text[0] == '\'' {
		for i := 1; i < len(text); i++ {
			// A quote ends the scalar, unless it is doubled.
			if text[i] != '\'' {
				continue
			}
			if i+1 < len(text) && text[i+1] == '\'' {
				i++
				continue
			}
			value, rest = text[1:i], text[i+1:]
			if strings.IndexByte(value, '\'') >= 0 {
				value = strings.ReplaceAll(value, "''", "'")
			}
			return value, rest, strings.IndexByte(value, '\n') < 0 && strings.IndexByte(value, '\t') < 0
		}
		return "", "", false
	}

	value, rest, ok = parseJSONString(text)
	return value, rest, ok && !strings.Contains(text[:len(text)-len(rest)], `\u`)
}
