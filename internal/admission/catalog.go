// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Catalog implements Objects with plain data, for files and tests. It always includes the two
// priority classes present in every cluster. Nil maps are empty. It must not be modified while in
// use.
type Catalog struct {
	Namespaces      map[string]*v1.Namespace
	PriorityClasses map[string]*schedulingv1.PriorityClass
	RuntimeClasses  map[string]*nodev1.RuntimeClass
}

// NewCatalog creates a catalog from lists, sharing their objects. Among several objects with the
// same name, the last one counts.
func NewCatalog(namespaces []*v1.Namespace, priorities []*schedulingv1.PriorityClass, runtimes []*nodev1.RuntimeClass) *Catalog {
	return &Catalog{Namespaces: byName(namespaces), PriorityClasses: byName(priorities), RuntimeClasses: byName(runtimes)}
}

func byName[T metav1.Object](list []T) map[string]T {
	named := make(map[string]T, len(list))
	for _, object := range list {
		named[object.GetName()] = object
	}
	return named
}

// Namespace implements Objects.
func (c *Catalog) Namespace(name string) (*v1.Namespace, error) { return c.Namespaces[name], nil }

// RuntimeClass implements Objects.
func (c *Catalog) RuntimeClass(name string) (*nodev1.RuntimeClass, error) {
	return c.RuntimeClasses[name], nil
}

// PriorityClass implements Objects.
func (c *Catalog) PriorityClass(name string) (*schedulingv1.PriorityClass, error) {
	if class := c.PriorityClasses[name]; class != nil {
		return class, nil
	}
	// Every API server creates these classes on startup, so files do not include them.
	if value, known := rules.SystemPriority(name); known {
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}, nil
	}
	return nil, nil
}

// DefaultPriorityClass implements Objects.
func (c *Catalog) DefaultPriorityClass() (*schedulingv1.PriorityClass, error) {
	var found *schedulingv1.PriorityClass
	for _, class := range c.PriorityClasses {
		found = LowerDefault(found, class)
	}
	return found, nil
}

// LowerDefault returns the default of two priority classes. If only one is marked as default, it
// returns that class; if both are, the class with the lower value, like kube-apiserver. The name
// breaks ties, so that the result does not depend on the order. Nil means none.
//
// The API server refuses a second default, but two classes created at the same moment may both be
// admitted.
func LowerDefault(a, b *schedulingv1.PriorityClass) *schedulingv1.PriorityClass {
	switch {
	case b == nil || !b.GlobalDefault:
		return a
	case a == nil || b.Value < a.Value || b.Value == a.Value && b.Name < a.Name:
		return b
	}
	return a
}
