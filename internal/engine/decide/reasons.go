package decide

import "github.com/berth-k8s/berth/internal/engine/plugins"

// reasonTable numbers why nodes themselves cannot take the pods of a class, so that a bucket can
// hold a reason. Rejections with the same texts are one reason. Numbers are given out in order and
// never taken back: a ranking with too many is rebuilt.
type reasonTable struct {
	list   []reason
	byText map[string]int16 // indices in list
	text   []byte           // space for a key of byText
	// merged: some reasons stand for several that differ in their texts alone. Why a pod fits
	// nowhere is then worked out the plain way.
	merged bool
}

// indexOf returns the index of a reason. Beyond most, those of a plugin are one, except that
// preemption can help with some.
func (t *reasonTable) indexOf(plugin string, rejection *plugins.Rejection, most int) int16 {
	text := append(t.text[:0], plugin...)
	if rejection.Unresolvable {
		text = append(text, 1)
	}
	name := len(text)
	for _, s := range rejection.Reasons {
		text = append(append(text, 0), s...)
	}
	t.text = text

	id, known := t.byText[string(text)]
	if !known && len(t.list) >= most {
		t.merged = true
		text = append(text[:name], 2)
		id, known = t.byText[string(text)]
	}

	if !known {
		id = int16(len(t.list))
		t.list = append(t.list, reason{plugin, rejection})
		t.byText[string(text)] = id
	}
	return id
}
