// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"
)

// parseBlock reads the YAML written by programs and most people: block mappings and sequences,
// scalars and flow collections that end on their line, literal blocks. It is ten times as fast as
// the YAML library, and accepts only input that it reads in the same way as the library. For all
// other input it returns false, and parseLibrary reads it.
//
// Support for further cases therefore need not be complete: leave doubtful input to the library. A
// fuzz test compares the two parsers.
func parseBlock(t *tree, text string, line int32) bool {
	t.reset()
	p := blockParser{t: t}
	if !p.splitLines(text, line) {
		return false
	}
	if p.skipBlank(); p.pos == len(p.lines) {
		return true
	}
	return p.parseBlockNode(p.lines[p.pos].indent, "", 0) && p.atEnd()
}

// blockLine is a line of the document. parseItem modifies text and indent of a line that begins
// with a dash.
type blockLine struct {
	raw    string // whole line without the line break
	text   string // without indentation and trailing space; "" if blank or a comment
	indent int
	number int32
}

// blockParser reads by lines, with one function for each construct. Each function begins at the
// current line, leaves pos at the first line after its construct, and returns false if the library
// must read the document.
type blockParser struct {
	t     *tree
	lines []blockLine
	// pos is the index of the current line, which is the next line to be read.
	pos int
}

// maxDepth bounds recursion, for input crafted to exhaust the stack. Kubernetes objects are far
// shallower.
const maxDepth = 100

// splitLines splits the text into lines, and finds the indentation of each line. It returns false
// for text with anything but printable ASCII and tabs, because the library handles Unicode's other
// line breaks and spaces.
func (p *blockParser) splitLines(text string, number int32) bool {
	// Lines of manifests average about thirty bytes.
	p.lines = make([]blockLine, 0, len(text)/24+1)
	for text != "" {
		raw, rest, found := strings.Cut(text, "\n")
		if !found && strings.TrimSpace(raw) != "" {
			return false // the missing last line break may change a value
		}
		text = rest
		raw = strings.TrimSuffix(raw, "\r")
		indent := 0
		for indent < len(raw) && raw[indent] == ' ' {
			indent++
		}
		content := strings.TrimRight(raw[indent:], " ")
		if strings.HasPrefix(content, "#") {
			content = ""
		}
		for i := range len(raw) {
			if raw[i] < ' ' && raw[i] != '\t' || raw[i] > '~' {
				return false
			}
		}
		p.lines = append(p.lines, blockLine{raw: raw, text: content, indent: indent, number: number})
		number++
	}
	return true
}

// skipBlank advances to the next line with content.
func (p *blockParser) skipBlank() {
	for p.pos < len(p.lines) && p.lines[p.pos].text == "" {
		p.pos++
	}
}

// atEnd reports whether only blank lines and comments remain.
func (p *blockParser) atEnd() bool {
	p.skipBlank()
	return p.pos == len(p.lines)
}

// isDash reports whether a line begins an item of a sequence: a dash, followed by a space or the
// end of the line.
func isDash(text string) bool {
	return text == "-" || strings.HasPrefix(text, "- ")
}

// parseBlockNode reads the mapping, sequence or scalar beginning at the current line with the
// indentation indent. key is the preceding key, for the node; depth is the nesting depth.
func (p *blockParser) parseBlockNode(indent int, key string, depth int) bool {
	if depth > maxDepth {
		return false
	}
	line := &p.lines[p.pos]
	if isMarker(line) {
		return false
	}
	if isDash(line.text) {
		return p.parseSequence(indent, key, depth)
	}

	// A single scalar is also a document, although not a manifest.
	if _, _, isKey, ok := splitKey(line.text); !ok {
		return false
	} else if isKey {
		return p.parseMapping(indent, key, depth)
	}

	text, number := line.text, line.number
	p.pos++
	return p.parseScalar(text, key, number, indent-1, depth) && p.hasEnded(indent-1)
}

// hasEnded reports whether the value of a key or dash indented by indent ends before the current
// line.
func (p *blockParser) hasEnded(indent int) bool {
	p.skipBlank()
	return p.pos == len(p.lines) || p.lines[p.pos].indent <= indent
}

// parseMapping reads the keys indented by indent, up to a less indented line.
func (p *blockParser) parseMapping(indent int, key string, depth int) bool {
	self := p.t.add(node{kind: mappingNode, key: key, line: p.lines[p.pos].number})
	children := p.t.childrenOf(self)
	for {
		if p.skipBlank(); p.pos == len(p.lines) || p.lines[p.pos].indent < indent {
			return true
		}
		line := &p.lines[p.pos]
		if line.indent > indent || isDash(line.text) || isMarker(line) {
			// A dash with the same indentation as the keys is an error, because the items of an
			// enclosing sequence are less indented.
			return false
		}
		name, rest, isKey, ok := splitKey(line.text)
		if !ok || !isKey {
			return false
		}
		number := line.number
		p.pos++
		child := int32(len(p.t.nodes))
		if rest != "" {
			if !p.parseScalar(rest, name, number, indent, depth) || !p.hasEnded(indent) {
				return false
			}
		} else if !p.parseNested(name, number, indent, depth) {
			return false
		}
		// For a value below its key, keep the line of the key, which messages refer to.
		p.t.nodes[child].line = number
		children.appendChild(child)
	}
}

// parseNested reads the lines after a key without a value: a more indented block, a sequence with
// the same indentation, or nothing.
func (p *blockParser) parseNested(key string, number int32, indent, depth int) bool {
	if p.skipBlank(); p.pos < len(p.lines) {
		line := &p.lines[p.pos]
		if line.indent > indent || line.indent == indent && isDash(line.text) {
			return p.parseBlockNode(line.indent, key, depth+1)
		}
	}
	p.t.add(node{key: key, line: number})
	return true
}

// parseSequence reads the items with dashes indented by indent.
func (p *blockParser) parseSequence(indent int, key string, depth int) bool {
	self := p.t.add(node{kind: sequenceNode, key: key, line: p.lines[p.pos].number})
	children := p.t.childrenOf(self)
	for {
		if p.skipBlank(); p.pos == len(p.lines) || p.lines[p.pos].indent < indent {
			return true
		}
		line := &p.lines[p.pos]
		// Items of one sequence are aligned. A more indented line would continue the previous item,
		// which has ended.
		if line.indent > indent || isMarker(line) {
			return false
		}
		if !isDash(line.text) {
			return true // the next key of the enclosing mapping, or a fault that the caller finds
		}
		child := int32(len(p.t.nodes))
		if !p.parseItem(line, indent, depth) {
			return false
		}
		children.appendChild(child)
	}
}

// parseItem reads one item: a value after the dash, a value on the lines below, or null if there is
// neither.
func (p *blockParser) parseItem(line *blockLine, indent, depth int) bool {
	rest := strings.TrimLeft(line.text[1:], " ")
	// At most a comment follows the dash. The item is the more indented block below, or null
	// without such a block.
	if rest == "" || rest[0] == '#' {
		number := line.number
		p.pos++
		if p.skipBlank(); p.pos < len(p.lines) && p.lines[p.pos].indent > indent {
			return p.parseBlockNode(p.lines[p.pos].indent, "", depth+1)
		}
		p.t.add(node{line: number})
		return true
	}
	_, _, isKey, ok := splitKey(rest)
	if !ok {
		return false
	}
	if isKey || isDash(rest) {
		// A mapping or sequence begins after the dash: reread the line with the dash replaced by a
		// space.
		line.indent += len(line.text) - len(rest)
		line.text = rest
		return p.parseBlockNode(line.indent, "", depth+1)
	}
	p.pos++
	return p.parseScalar(rest, "", line.number, indent, depth) && p.hasEnded(indent)
}

// isMarker reports whether a line is --- or ..., which begin and end documents.
func isMarker(line *blockLine) bool {
	return line.indent == 0 && (strings.HasPrefix(line.text, "---") || strings.HasPrefix(line.text, "..."))
}

// parseScalar reads a value beginning on the line of its key or dash; outer is the indentation of
// that key or dash.
func (p *blockParser) parseScalar(text, key string, number int32, outer, depth int) bool {
	switch text[0] {
	case '#':
		return p.parseNested(key, number, outer, depth)
	// A literal block consists of the following lines. All other values must end on this line.
	case '|':
		return p.parseLiteral(text, key, number, outer)
	case '{', '[':
		f := flowParser{t: p.t, text: text, line: number}
		return f.parseValue(key, depth) && onlyComment(text[f.pos:])
	case '"', '\'':
		value, rest, ok := parseQuoted(text)
		if !ok || !onlyComment(rest) {
			return false
		}
		p.t.add(node{key: key, text: value, quoted: true, line: number})
		return true
	}

	value, ok := parsePlain(text)
	if !ok {
		return false
	}

	p.t.add(node{key: key, text: value, line: number})
	return true
}

// onlyComment reports whether the rest of a line is empty or a comment. A comment's # follows a
// space.
func onlyComment(rest string) bool {
	trimmed := strings.TrimLeft(rest, " ")
	return trimmed == "" || trimmed[0] == '#' && len(trimmed) < len(rest)
}

// parseLiteral reads a block after "|" or "|-". It leaves other indicators, as in "|2" and ">", to
// the library. outer is the indentation of the preceding key or dash; the first line determines the
// block's indentation.
func (p *blockParser) parseLiteral(head, key string, number int32, outer int) bool {
	if head != "|" && head != "|-" {
		return false
	}
	begin := p.pos
	if begin == len(p.lines) || strings.TrimSpace(p.lines[begin].raw) == "" {
		return false
	}
	indent := p.lines[begin].indent
	if indent <= outer || indent == 0 {
		return false
	}
	// last is the last line with text: "|" and "|-" drop the blank lines at the end.
	end, last := begin, begin
	for ; end < len(p.lines); end++ {
		line := &p.lines[end]
		if len(line.raw) == line.indent { // only spaces
			// YAML would include some of these spaces in the text.
			if line.indent > indent {
				return false
			}
			continue
		}
		if line.indent < indent {
			break
		}
		last = end
	}
	if end < len(p.lines) && p.lines[end].indent > outer {
		return false
	}
	var value strings.Builder
	for i := begin; i <= last; i++ {
		if i > begin {
			value.WriteByte('\n')
		}
		// Use the raw line: trailing spaces, and text that resembles a comment, belong to the
		// block.
		if raw := p.lines[i].raw; len(raw) > indent {
			value.WriteString(raw[indent:])
		}
	}
	if head == "|" {
		value.WriteByte('\n')
	}
	p.pos = last + 1
	p.t.add(node{key: key, text: value.String(), quoted: true, line: number})
	return true
}
