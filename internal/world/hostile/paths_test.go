// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
)

// TestEveryFieldGrows verifies that the generator fills every unbounded field, and creates no
// object far beyond the API server's limit.
func TestEveryFieldGrows(t *testing.T) {
	const room = 20_000
	for _, kind := range Kinds {
		all := Paths(kind)
		if len(all) < 10 {
			t.Errorf("%s has %d fields of any length", kind.Name, len(all))
		}
		for i, path := range all {
			if i%5 > 0 { // many paths share their lists and maps
				continue
			}
			g := &Generator{Rand: rand.New(rand.NewPCG(uint64(i), 1))}
			text, err := json.Marshal(g.Object(kind, path, room, false))
			if err != nil {
				t.Fatal(err)
			}
			if len(text) < 500 || len(text) > 100*room {
				t.Errorf("%s of %s has %d bytes: %.300s", path, kind.Name, len(text), text)
			}
		}
		t.Logf("%s: %d fields, the last one is %s", kind.Name, len(all), all[len(all)-1])
	}
}

// TestLongPodsFit verifies that the size of the pods is below the limit of the API server, but not
// far below it.
func TestLongPodsFit(t *testing.T) {
	for _, pod := range LongPods("t7-") {
		if size := pod.Size(); size < 500_000 || size > 1_500_000 {
			t.Errorf("%s has %d bytes", pod.Name, size)
		}
	}
}
