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

// Step is one event of a recording, as the watches of a component would have shown it.
type Step struct {
	At time.Time
	// Begins marks the beginning of a session. All objects that existed then follow, up to a step
	// with Began.
	Begins, Began bool
	// Object is of one of the kinds played, as it was from then on. With Gone, it was deleted, and
	// only its name is set.
	Object metav1.Object
	Gone   bool
}

// errEnough ends the reading when the consumer of the sequence has had enough.
var errEnough = errors.New("enough")

// played are the kinds that are played, by the names of their lists. Nodes come first: pods are on
// them.
var played = []struct{ resource, kind string }{
	{"nodes", "Node"}, {"compositepodgroups", "CompositePodGroup"}, {"podgroups", "PodGroup"},
	{"resourceclaims", "ResourceClaim"}, {"pods", "Pod"},
}

// Play yields what a watch would have shown of the nodes, pod groups, claims for devices and pods
// of sessions, in order of time. An error is the last that it yields. Objects are the consumer's.
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

	// Between two sessions, anything may have happened. Consumers begin anew.
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
	// All of them: the end in the index may be older than the last change.
	return replaySession(dir, s.Folder, s.Until.Add(time.Hour), func(c *Change) error {
		o, kind, err := decodeObject(c.Object)
		if err != nil || !slices.ContainsFunc(played, func(of struct{ resource, kind string }) bool { return of.kind == kind }) {
			return err
		}
		return tell(Step{At: c.At.Time, Object: o, Gone: c.Type != "Set"})
	})
}

// decodeObject decodes an object of any kind that the API has, and returns its kind.
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
