// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"iter"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// Step is one event of a recording, as a component's watches would have shown it.
type Step struct {
	At time.Time
	// Begins marks the beginning of a session. All objects that existed then follow, up to a step
	// with Began.
	Begins, Began bool
	// Object is the new state of an object of a played kind. With Gone, it was deleted, and only
	// its name is set.
	Object metav1.Object
	Gone   bool
}

// errEnough ends the reading when the consumer of the sequence stops.
var errEnough = errors.New("enough")

// played lists the played kinds by the names of their lists. Nodes precede their pods.
var played = []struct{ resource, kind string }{
	{"nodes", "Node"}, {"compositepodgroups", "CompositePodGroup"}, {"podgroups", "PodGroup"},
	{"resourceclaims", "ResourceClaim"}, {"pods", "Pod"},
}

// Play yields the events of the played kinds in the sessions, in order of time, as watches would
// have shown them. It stops after yielding an error. The consumer owns the objects.
func Play(dir string, sessions []Session) iter.Seq2[Step, error] {
	return func(yield func(Step, error) bool) {
		for i := range sessions {
			if err := playSession(dir, &sessions[i], yield); err != nil {
				if !errors.Is(err, errEnough) {
					yield(Step{}, err)
				}
				return
			}
		}
	}
}

// playSession plays one session: its objects first, and then its changes.
func playSession(dir string, s *Session, yield func(Step, error) bool) error {
	if err := s.checkFolder(dir); err != nil {
		return err
	}

	tell := func(step Step) error {
		// The consumer has left its loop, and must not be called again.
		if !yield(step, nil) {
			return errEnough
		}
		return nil
	}

	// Anything may have happened between two sessions, so consumers start over.
	if err := tell(Step{At: s.Began.Time, Begins: true}); err != nil {
		return err
	}
	for _, of := range played {
		err := readList(dir, filepath.Join(s.Folder, of.resource+".json"), func(text []byte) error {
			o, _, err := decodeObject(text)
			if err != nil {
				return err
			}
			return tell(Step{At: s.Began.Time, Object: o})
		})
		if err != nil {
			return err
		}
	}

	if err := tell(Step{At: s.Began.Time, Began: true}); err != nil {
		return err
	}
	// Replay all changes: the end in the index may be older than the last change.
	return replaySession(dir, s.Folder, s.Until.Add(time.Hour), func(c *Change) error {
		o, kind, err := decodeObject(c.Object)
		if err != nil || !slices.ContainsFunc(played, func(of struct{ resource, kind string }) bool { return of.kind == kind }) {
			return err
		}
		return tell(Step{At: c.At.Time, Object: o, Gone: c.Type != "Set"})
	})
}

// decodeObject decodes an API object of any kind, and returns its kind.
func decodeObject(text []byte) (o metav1.Object, kind string, err error) {
	var object runtime.Object
	if object, _, err = scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil); err != nil {
		return nil, "", err
	}
	o, ok := object.(metav1.Object)
	if !ok {
		return nil, "", errors.New("an object without a name")
	}
	return o, object.GetObjectKind().GroupVersionKind().Kind, nil
}
