package journal

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
)

// words are the types of a core's events. Their indexes are part of the format: new ones are
// appended.
type words[E any] struct {
	types  []reflect.Type
	places map[reflect.Type]int
}

func wordsOf[E any](examples ...E) words[E] {
	w := words[E]{places: map[reflect.Type]int{}}
	for i, example := range examples {
		t := reflect.TypeOf(example)
		w.types, w.places[t] = append(w.types, t), i
	}
	return w
}

var (
	ofEviction = wordsOf[eviction.Event](
		eviction.Tick{}, eviction.PodSeen{}, eviction.PodGone{}, eviction.PodsListing{}, eviction.PodsListed{},
		eviction.NodeSeen{}, eviction.NodeGone{}, eviction.NodesListing{}, eviction.NodesListed{}, eviction.Answered{},
		eviction.ClaimSeen{}, eviction.ClaimGone{}, eviction.SliceSeen{}, eviction.SliceGone{}, eviction.RuleSeen{}, eviction.RuleGone{},
		eviction.Listing{}, eviction.Listed{},
	)
	ofNodeHealth = wordsOf[nodehealth.Event](
		nodehealth.Tick{}, nodehealth.NodeSeen{}, nodehealth.NodeGone{}, nodehealth.NodesListing{}, nodehealth.NodesListed{},
		nodehealth.LeaseSeen{}, nodehealth.LeaseGone{}, nodehealth.LeasesListed{}, nodehealth.Blind{},
		nodehealth.Sighted{}, nodehealth.Answered{},
		nodehealth.Away{},
	)
)

// appendEvent appends an event to b: the index of its type, and its content in JSON.
func (w words[E]) appendEvent(b []byte, e E) ([]byte, error) {
	t := reflect.TypeOf(e)
	place, ok := w.places[t]
	if !ok {
		return nil, fmt.Errorf("%T cannot be written down", e)
	}
	b = append(b, byte(place))
	if t.NumField() == 0 {
		return appendText(b, nil), nil
	}
	text, err := json.Marshal(e)
	return appendText(b, text), err
}

func (w words[E]) readEvent(d *decoder) (e E) {
	place, text := int(d.readByte()), d.readText()
	if d.err == nil && place >= len(w.types) {
		d.err = fmt.Errorf("unknown type of event %d", place)
	}
	if d.err != nil {
		return e
	}
	read := reflect.New(w.types[place])
	if len(text) > 0 {
		d.err = json.Unmarshal(text, read.Interface())
	}
	return read.Elem().Interface().(E)
}

// formatActions returns actions in the form that journals hold, one per line.
func formatActions[A any](actions []A) string {
	if len(actions) == 0 {
		return ""
	}
	var b strings.Builder
	for i, action := range actions {
		if i > 0 {
			b.WriteByte('\n')
		}
		said, err := json.Marshal(action)
		if err != nil {
			said = []byte(err.Error())
		}
		fmt.Fprintf(&b, "%s %s", reflect.TypeOf(action).Name(), said)
	}
	return b.String()
}
