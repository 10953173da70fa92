package manifest

import (
	"strings"
)

// parseBlock reads the YAML that programs and most people write: block mappings and
// sequences, scalars and flow collections that end on their line, literal blocks. It is ten
// times as fast as the library, and accepts nothing that the library would read differently.
// For everything else it returns false, and parseLibrary reads it.
//
// So whoever adds a case here need not make it complete: what is doubtful is left to the
// library. A fuzz test compares the two.
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

// blockLine is a line of the document. parseItem changes text and indent of one that begins
// with a dash.
type blockLine struct {
	raw    string // as it stands, without the line break
	text   string // without indentation and trailing space; "" if blank or a comment
	indent int
	number int32
}

// blockParser reads by lines, with one function for each construct. Each of these begins at
// the current line, leaves pos at the first line that is not its own, and returns false if
// the library has to read the document.
type blockParser struct {
	t     *tree
	lines []blockLine
	// pos is the current line: the next one to be read.
	pos int
}

// maxDepth bounds recursion, for input that is made to exhaust the stack. No Kubernetes
// object comes near it.
const maxDepth = 100

// splitLines finds the indentation of each line. Text that is not printable ASCII is left to
// the library, which knows the other line breaks and spaces of Unicode.
func (p *blockParser) splitLines(text string, number int32) bool {
	// Lines of manifests are some thirty bytes long.
	p.lines = make([]blockLine, 0, len(text)/24+1)
	for text != "" {
		raw, rest, found := strings.Cut(text, "\n")
		if !found && strings.TrimSpace(raw) != "" {
			return false // without the last line break some values mean something else
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

// skipBlank goes to the next line with content.
func (p *blockParser) skipBlank() {
	for p.pos < len(p.lines) && p.lines[p.pos].text == "" {
		p.pos++
	}
}

// atEnd reports whether nothing but blank lines and comments is left.
func (p *blockParser) atEnd() bool {
	p.skipBlank()
	return p.pos == len(p.lines)
}

// isDash reports whether a line begins an item of a sequence: a dash and a space, or a dash
// alone.
func isDash(text string) bool {
	return text == "-" || strings.HasPrefix(text, "- ")
}

// parseBlockNode reads the mapping, sequence or scalar that begins at the current line, which
// is indented by indent. key is the key before it, for the node; depth is how deeply it is
// nested.
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

	// A single scalar is a document, too, although no manifest is one.
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
// line: no further line belongs to it.
func (p *blockParser) hasEnded(indent int) bool {
	p.skipBlank()
	return p.pos == len(p.lines) || p.lines[p.pos].indent <= indent
}

// parseMapping reads the keys that are indented by indent, up to a line that is indented
// less.
func (p *blockParser) parseMapping(indent int, key string, depth int) bool {
	self := p.t.add(node{kind: mappingNode, key: key, line: p.lines[p.pos].number})
	children := p.t.childrenOf(self)
	for {
		if p.skipBlank(); p.pos == len(p.lines) || p.lines[p.pos].indent < indent {
			return true
		}
		line := &p.lines[p.pos]
		if line.indent > indent || isDash(line.text) || isMarker(line) {
			// A dash here can only be the next item of a sequence around this mapping, which then
			// stands further to the left.
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
		// Of a value on lines of its own, the line of its key is kept: that is where messages
		// point to.
		p.t.nodes[child].line = number
		children.appendChild(child)
	}
}

// parseNested reads what follows a key without a value: something that is indented more, a sequence
// with the same indentation, or nothing.
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

// parseSequence reads the items whose dashes are indented by indent.
func (p *blockParser) parseSequence(indent int, key string, depth int) bool {
	self := p.t.add(node{kind: sequenceNode, key: key, line: p.lines[p.pos].number})
	children := p.t.childrenOf(self)
	for {
		if p.skipBlank(); p.pos == len(p.lines) || p.lines[p.pos].indent < indent {
			return true
		}
		line := &p.lines[p.pos]
		// Items of one sequence stand under each other. What is indented more would
		// continue the item before, which has ended.
		if line.indent > indent || isMarker(line) {
			return false
		}
		if !isDash(line.text) {
			return true // the next key of the mapping around it, or a fault found there
		}
		child := int32(len(p.t.nodes))
		if !p.parseItem(line, indent, depth) {
			return false
		}
		children.appendChild(child)
	}
}

// parseItem reads one item: a value after the dash, one on the lines below, or nothing, which
// is null.
func (p *blockParser) parseItem(line *blockLine, indent, depth int) bool {
	rest := strings.TrimLeft(line.text[1:], " ")
	// Nothing but a comment follows the dash. What is indented more is the item; nothing
	// of that is null.
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
		// A mapping or sequence that begins after the dash: read the line again as if the dash were
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

// parseScalar reads a value that begins on a line after a key or a dash; outer is the indentation
// of that key or dash.
func (p *blockParser) parseScalar(text, key string, number int32, outer, depth int) bool {
	switch text[0] {
	case '#':
		return p.parseNested(key, number, outer, depth)
	// Literal blocks and flow collections continue below; quoted and plain scalars must
	// end on this line.
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

// onlyComment reports whether the rest of a line is empty or a comment. A # without a space
// before it is none.
func onlyComment(rest string) bool {
	trimmed := strings.TrimLeft(rest, " ")
	return trimmed == "" || trimmed[0] == '#' && len(trimmed) < len(rest)
}

// parseLiteral reads a block after "|" or "|-". Other indicators, as in "|2" and ">", are
// left to the library. outer is the indentation of the key or dash before it; the block is
// indented by as much as its first line.
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
		if len(line.raw) == line.indent { // nothing but spaces
			// Here YAML would have some of these spaces in the text.
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
		// The raw line: what looks like a comment is text here, and spaces at the end
		// count.
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
