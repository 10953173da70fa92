// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/tools/cache"
)

// filled is an informer factory whose informers are filled directly and never run. A handler
// receives every object when the handler is added. The embedded interface is nil, because the
// scheduler does not use the other methods.
type filled struct {
	informers.SharedInformerFactory
	byType map[reflect.Type]*filledInformer
}

func newFilled(objects []runtime.Object) *filled {
	f := &filled{byType: map[reflect.Type]*filledInformer{}}
	for _, o := range objects {
		// Keys consist of namespace and name, so adding an object to the store cannot fail.
		_ = f.informerFor(o).indexer.Add(o)
	}
	return f
}

func (f *filled) informerFor(kind runtime.Object) *filledInformer {
	t := reflect.TypeOf(kind)
	i, ok := f.byType[t]
	if !ok {
		i = &filledInformer{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
		f.byType[t] = i
	}
	return i
}

// InformerFor is called by client-go's typed informers.
func (f *filled) InformerFor(kind runtime.Object, _ internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return f.informerFor(kind)
}

func (f *filled) InformerName() *cache.InformerName { return nil }
func (f *filled) Start(<-chan struct{})             {}
func (f *filled) Core() core.Interface              { return core.New(f, "", nil) }
func (f *filled) Apps() apps.Interface              { return apps.New(f, "", nil) }
func (f *filled) Policy() policy.Interface          { return policy.New(f, "", nil) }
func (f *filled) Storage() storage.Interface        { return storage.New(f, "", nil) }
func (f *filled) Resource() resource.Interface      { return resource.New(f, "", nil) }

// filledInformer is an informer of filled. The embedded interface is nil, because the other methods
// are only used by running informers.
type filledInformer struct {
	cache.SharedIndexInformer
	indexer cache.Indexer
}

func (i *filledInformer) GetIndexer() cache.Indexer              { return i.indexer }
func (i *filledInformer) GetStore() cache.Store                  { return i.indexer }
func (i *filledInformer) AddIndexers(more cache.Indexers) error  { return i.indexer.AddIndexers(more) }
func (i *filledInformer) HasSynced() bool                        { return true }
func (i *filledInformer) HasSyncedChecker() cache.DoneChecker    { return synced{} }
func (i *filledInformer) Run(<-chan struct{})                    {}
func (i *filledInformer) RunWithContext(context.Context)         {}
func (i *filledInformer) SetTransform(cache.TransformFunc) error { return nil }
func (i *filledInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	for _, o := range i.indexer.List() {
		h.OnAdd(o, true)
	}
	return synced{}, nil
}

func (i *filledInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler,
	_ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

func (i *filledInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler,
	_ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

// synced is the registration of a handler that has received all objects.
type synced struct{}

func (synced) HasSynced() bool                     { return true }
func (synced) HasSyncedChecker() cache.DoneChecker { return synced{} }
func (synced) Name() string                        { return "filled" }
func (synced) Done() <-chan struct{}               { return closed }

var closed = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()
