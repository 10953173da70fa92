// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	nodelisters "k8s.io/client-go/listers/node/v1"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-k8s/berth/internal/admission"
)

// ErrCold is the result of every lookup before the caches are filled.
var ErrCold = errors.New("not yet ready to handle request: the caches of namespaces, priority classes and runtime classes are not filled")

// lookupLimit bounds a lookup at the API server, since a client's request waits for it.
const lookupLimit = 2 * time.Second

const (
	// lookups is the maximum number of concurrent lookups.
	lookups = 4
	// absent is the time during which a missing object is not looked up again. If the object is
	// created meanwhile, the watch reports it almost immediately.
	absent = time.Second
	// absentees is the maximum number of remembered missing objects.
	absentees = 1024
)

// ErrBusy reports too many concurrent lookups of uncached objects. The object may or may not exist.
var ErrBusy = errors.New("too many requests name objects that are not known; try again in a second")

// ErrUnknown reports that the namespace of a pod is not known yet.
var ErrUnknown = errors.New("not known yet; try again")

// Caches hold the objects referenced by pods, as observed by watches. They are safe for concurrent
// use. Returned objects are shared and must not be modified.
type Caches struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	priorities schedulinglisters.PriorityClassLister
	runtimes   nodelisters.RuntimeClassLister
	synced     []cache.InformerSynced

	// Any client can make up names and cause lookups. Therefore lookups are limited, and missing
	// objects are remembered.
	looking chan struct{}
	absent  *utilcache.LRUExpireCache // by kind and name
}

// NewCaches returns caches filled by informers of the factory, which the caller must start.
// Uncached objects are looked up with the client.
func NewCaches(client kubernetes.Interface, factory informers.SharedInformerFactory) *Caches {
	namespaces := factory.Core().V1().Namespaces()
	priorities := factory.Scheduling().V1().PriorityClasses()
	runtimes := factory.Node().V1().RuntimeClasses()
	return &Caches{
		client:  client,
		looking: make(chan struct{}, lookups), absent: utilcache.NewLRUExpireCache(absentees),
		namespaces: namespaces.Lister(), priorities: priorities.Lister(), runtimes: runtimes.Lister(),
		synced: []cache.InformerSynced{namespaces.Informer().HasSynced, priorities.Informer().HasSynced, runtimes.Informer().HasSynced},
	}
}

// HasSynced reports whether all caches have been filled once.
func (c *Caches) HasSynced() bool {
	return !slices.ContainsFunc(c.synced, func(synced cache.InformerSynced) bool { return !synced() })
}

// For returns the objects for one request, valid until ctx ends. The default priority class is
// taken from the cache.
func (c *Caches) For(ctx context.Context) admission.Objects { return objects{c, ctx} }

// Fresh is like For, but reads the default priority class from the API server, for the rare check
// whether a default already exists.
func (c *Caches) Fresh(ctx context.Context) admission.Objects { return fresh{objects{c, ctx}} }

// objects implements admission.Objects.
type objects struct {
	*Caches
	ctx context.Context
}

// find looks in the cache and then, if the object is missing, at the API server: the watch may not
// have delivered a class created a moment before a pod that names it. kube-apiserver's plugin
// RuntimeClass does the same.
func find[T any](o objects, cached func(name string) (*T, error),
	get func(context.Context, string, metav1.GetOptions) (*T, error), kind, name string) (*T, error) {
	if !o.HasSynced() {
		return nil, ErrCold
	}
	object, err := cached(name)
	if apierrors.IsNotFound(err) {
		key := kind + "/" + name
		if _, known := o.absent.Get(key); known {
			return nil, nil
		}
		err = o.look(func(ctx context.Context) (err error) {
			// The watch may have delivered the object in the meantime.
			if object, err = cached(name); !apierrors.IsNotFound(err) {
				return err
			}
			object, err = get(ctx, name, metav1.GetOptions{})
			return err
		})
		if apierrors.IsNotFound(err) {
			o.absent.Add(key, true, absent)
		}
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return object, nil
}

// look queries the API server when a slot is free. It takes at most lookupLimit, including the wait
// for the slot.
func (o objects) look(question func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(o.ctx, lookupLimit)
	defer cancel()
	select {
	case o.looking <- struct{}{}:
		defer func() { <-o.looking }()
		return question(ctx)
	case <-ctx.Done():
		return ErrBusy
	}
}

// Namespace, RuntimeClass and PriorityClass implement admission.Objects.
//
// A missing namespace is an error: the API server accepts pods only in existing namespaces, so this
// one was just created, and its tolerations and selectors are not known yet. It is looked up each
// time: if missing namespaces were remembered, any client of the webhook could name a namespace
// before its creation and thereby delay its pods.
func (o objects) Namespace(name string) (*v1.Namespace, error) {
	o.absent.Remove("namespaces/" + name)
	namespace, err := find(o, o.namespaces.Get, o.client.CoreV1().Namespaces().Get, "namespaces", name)
	if err == nil && namespace == nil {
		return nil, ErrUnknown
	}
	return namespace, err
}

// FreshPriorityClass returns a class from the API server: the cache may lag behind a class that was
// deleted and recreated with another value.
func (o objects) FreshPriorityClass(name string) (class *schedulingv1.PriorityClass, err error) {
	err = o.look(func(ctx context.Context) (err error) {
		class, err = o.client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return class, err
}

func (o objects) PriorityClass(name string) (*schedulingv1.PriorityClass, error) {
	return find(o, o.priorities.Get, o.client.SchedulingV1().PriorityClasses().Get, "priorityclasses", name)
}

func (o objects) RuntimeClass(name string) (*nodev1.RuntimeClass, error) {
	return find(o, o.runtimes.Get, o.client.NodeV1().RuntimeClasses().Get, "runtimeclasses", name)
}

// DefaultPriorityClass uses only the cache: a lookup by name cannot prove the absence of a default.
func (o objects) DefaultPriorityClass() (*schedulingv1.PriorityClass, error) {
	if !o.HasSynced() {
		return nil, ErrCold
	}
	classes, err := o.priorities.List(labels.Everything())
	return lowestDefault(classes), err
}

// fresh is objects with a default priority class read at the time of the call.
type fresh struct{ objects }

// DefaultPriorityClass lists the classes at the API server.
func (f fresh) DefaultPriorityClass() (*schedulingv1.PriorityClass, error) {
	var list *schedulingv1.PriorityClassList
	err := f.look(func(ctx context.Context) (err error) {
		list, err = f.client.SchedulingV1().PriorityClasses().List(ctx, metav1.ListOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list priority classes: %w", err)
	}
	classes := make([]*schedulingv1.PriorityClass, len(list.Items))
	for i := range list.Items {
		classes[i] = &list.Items[i]
	}
	return lowestDefault(classes), nil
}

// lowestDefault returns the default among the classes, or nil.
func lowestDefault(classes []*schedulingv1.PriorityClass) *schedulingv1.PriorityClass {
	var found *schedulingv1.PriorityClass
	for _, class := range classes {
		found = admission.LowerDefault(found, class)
	}
	return found
}
