package logfile

import "bytes"

// printer prints lines as the options ask.
type printer struct {
	options Options
	w       Writer
	written int64
	within  map[Stream]bool // streams that are in the middle of a line that the program wrote
	// What the further parts of a line need to know about its beginning, if it is longer than a
	// piece.
	shown, partial bool
	stream         Stream
}

func (p *printer) line(line []byte, continued bool) error {
	if continued {
		return p.more(line)
	}
	e, ok := parse(line)
	p.shown = ok && p.wants(e)
	if !p.shown {
		return nil
	}
	p.stream, p.partial = e.stream, e.partial
	if p.options.Timestamps && !p.within[e.stream] {
		if at, ok := e.at(); ok {
			if err := p.write(append(at.AppendFormat(nil, timeFormat), ' ')); err != nil {
				return err
			}
		}
	}
	if p.within == nil {
		p.within = map[Stream]bool{}
	}
	p.within[e.stream] = e.partial
	return p.write(e.text)
}

// more prints a further part of a line that is longer than a piece.
func (p *printer) more(part []byte) error {
	if !p.shown {
		return nil
	}
	if p.partial {
		part = bytes.TrimSuffix(part, []byte{'\n'})
	}
	return p.write(part)
}

// rest prints an unfinished line whose writer has gone.
func (p *printer) rest(line []byte) error {
	if len(line) == 0 {
		return nil
	}
	return p.line(line, false)
}

func (p *printer) wants(e entry) bool {
	if p.options.Only != "" && p.options.Only != e.stream {
		return false
	}
	if p.options.Since.IsZero() {
		return true
	}
	at, ok := e.at()
	return ok && !at.Before(p.options.Since)
}

func (p *printer) write(text []byte) error {
	enough := false
	if p.options.Limit != nil {
		left := *p.options.Limit - p.written
		enough = int64(len(text)) >= left
		text = text[:min(int64(len(text)), max(0, left))]
	}
	n, err := p.w.Write(text)
	p.written += int64(n)
	if err == nil && enough {
		err = errEnough
	}
	return err
}
