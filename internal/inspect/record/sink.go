package record

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-k8s/berth/internal/inspect/snapshot"
)

// sink takes what a reflector shows into the recorder. A list takes the place of all that was known
// of its kind.
type sink struct {
	*recorder
	kind snapshot.Kind
}

// Add implements cache.ReflectorStore.
func (s *sink) Add(object any) error { return s.Update(object) }

// Update implements cache.ReflectorStore.
func (s *sink) Update(object any) error {
	o, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	s.set(s.kind, o)
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *sink) Delete(object any) error {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	o, err := meta.Accessor(object)
	if err != nil {
		return fmt.Errorf("deleted %T: %w", object, err)
	}
	s.delete(s.kind, o.GetNamespace(), o.GetName())
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *sink) Replace(list []any, version string) error {
	there := map[string]bool{}
	for _, object := range list {
		o, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		there[o.GetNamespace()+"/"+o.GetName()] = true
		s.set(s.kind, o)
	}
	s.mu.Lock()
	var gone []metav1.ObjectMeta
	for name := range s.kinds[s.kind.Resource] {
		if !there[name] {
			namespace, name, _ := strings.Cut(name, "/")
			gone = append(gone, metav1.ObjectMeta{Namespace: namespace, Name: name})
		}
	}
	s.mu.Unlock()
	for i := range gone {
		s.delete(s.kind, gone[i].Namespace, gone[i].Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index.Source.ResourceVersion = version; !s.listed[s.kind.Resource] {
		s.listed[s.kind.Resource] = true
		for _, listed := range s.listed {
			if !listed {
				return nil
			}
		}
		close(s.ready)
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *sink) Resync() error { return nil }
