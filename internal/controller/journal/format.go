package journal

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// Magic begins every journal of the controllers. Its number grows when older builds cannot read
// what newer ones write.
const Magic = "berth-controller-journal 1\n"

// Header is what the core was made from.
type Header struct {
	Component string    `json:"component"` // Eviction or NodeHealth
	Build     string    `json:"build"`     // of Berth
	Began     time.Time `json:"began"`
	// Continues is when the file began that this one continues; zero for the first of a process.
	Continues time.Time `json:"continues,omitzero"`
	// Options are the core's.
	Options json.RawMessage `json:"options"`
	// Knowledge is the size, in bytes of JSON, of the core's state at the beginning of the file,
	// which the records after the header hold; 0: none.
	Knowledge int `json:"knowledge,omitempty"`
}

// The components, by their names in kube-controller-manager.
const (
	Eviction   = "taint-eviction-controller"
	NodeHealth = "node-lifecycle-controller"
)

// piece is how much of the state a record holds at most.
const piece = 1 << 20

func appendText(b, text []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// decoder reads a record. It keeps the first error.
type decoder struct {
	rest []byte
	err  error
}

var errShort = errors.New("it is shorter than what it says")

func (d *decoder) failShort() { d.err, d.rest = errShort, nil }

func (d *decoder) readByte() byte {
	if len(d.rest) == 0 {
		d.failShort()
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder) readDuration() time.Duration {
	n, size := binary.Varint(d.rest)
	if size <= 0 {
		d.failShort()
		return 0
	}
	d.rest = d.rest[size:]
	return time.Duration(n)
}

func (d *decoder) readText() []byte {
	n, size := binary.Uvarint(d.rest)
	if size <= 0 || n > uint64(len(d.rest)-size) {
		d.failShort()
		return nil
	}
	text := d.rest[size : size+int(n)]
	d.rest = d.rest[size+int(n):]
	return text
}

// Reader reads a journal.
type Reader struct {
	*records.Reader
	Header Header

	at   time.Time     // of the last record
	skew time.Duration // by how much the wall clock was ahead of the core's
}

// NewReader reads the header.
func NewReader(from io.Reader) (*Reader, error) {
	r := &Reader{}
	var err error
	if r.Reader, err = records.NewReader(from, Magic, &r.Header); err != nil {
		return nil, err
	}
	r.at = r.Header.Began
	return r, nil
}

// readKnowledge reads the core's state at the beginning of the file; io.EOF if it is cut off.
func (r *Reader) readKnowledge() ([]byte, error) {
	var all []byte
	for len(all) < r.Header.Knowledge {
		part, err := r.Reader.Next()
		if err != nil {
			return nil, err
		}
		all = append(all, part...)
	}
	return all, nil
}

// nextRecord reads the next record up to its event; io.EOF at the end.
func (r *Reader) nextRecord() (*decoder, error) {
	record, err := r.Reader.Next()
	if err != nil {
		return nil, err
	}
	d := &decoder{rest: record}
	r.at, r.skew = r.at.Add(d.readDuration()), r.skew+d.readDuration()
	return d, nil
}
