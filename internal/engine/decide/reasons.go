// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import "github.com/berth-k8s/berth/internal/engine/plugins"

// reasonTable numbers the reasons why nodes themselves cannot take the pods of a class, so that a
// bucket can hold a reason. Rejections with the same texts share a reason. Numbers are assigned in
// order and never freed: a ranking with too many reasons is rebuilt.
type reasonTable struct {
	list   []reason
	byText map[string]int16 // indices in list
	text   []byte           // scratch space for a key of byText
	// merged is set if some reasons represent several reasons that differ only in their texts.
	// Plain then determines why a pod fits nowhere.
	merged bool
}

// indexOf returns the index of a reason. If the table already holds limit reasons, all further
// reasons of a plugin are merged into two: one for rejections that preemption can resolve, and one
// for all other rejections.
func (t *reasonTable) indexOf(plugin string, rejection *plugins.Rejection, limit int) int16 {
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
	if !known && len(t.list) >= limit {
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
