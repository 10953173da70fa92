// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bytes"
	"context"
	"hash/maphash"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Source lists and watches one kind of object.
type Source struct {
	Name     string // name of the resource, such as "pods"
	Selector string // field selector
	List     func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch    func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// Anew, if set, makes the feed list again when it is closed. Unlike a list, a watch may lag
	// because of the API server or the network. If a list begins after Anew is closed, no other
	// list is needed; see Sink.Fresh.
	Anew <-chan struct{}
}

// Of returns a source for a resource in a namespace, or in all namespaces if namespace is empty.
// client is the client of the API group. client-go's own retries are disabled, because the feed
// paces its requests.
func Of(client rest.Interface, namespace, resource string, newList func() runtime.Object) Source {
	return newSource(client, namespace, resource, newList, nil, nil)
}

// WithoutManagedFields is like Of, but drops the managed fields of objects in the protobuf format,
// which are a large part of most objects.
func WithoutManagedFields(client rest.Interface, resource string, newList func() runtime.Object) Source {
	return newSource(client, metav1.NamespaceAll, resource, newList, managedFields, nil)
}

// WithoutHeartbeats returns a source for nodes without managed fields, whose watch shows no change
// if only the heartbeat of a node has changed. Kubelets update the status of every node at least
// every five minutes.
func WithoutHeartbeats(client rest.Interface) Source {
	return newSource(client, metav1.NamespaceAll, "nodes", func() runtime.Object { return &v1.NodeList{} }, managedFields,
		&heartbeats{seed: maphash.MakeSeed()})
}

func newSource(client rest.Interface, namespace, resource string, newList func() runtime.Object, unused fields, h *heartbeats) Source {
	get := func(o *metav1.ListOptions) *rest.Request {
		return client.Get().Namespace(namespace).Resource(resource).VersionedParams(o, metav1.ParameterCodec).MaxRetries(0)
	}
	var text bytes.Buffer
	var unusedInList fields
	if unused != nil {
		unusedInList = fields{2: unused} // field 2 of a list holds the items
	}
	return Source{
		Name: resource,
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if h != nil {
				h.known = map[uint64]uint64{} // the list may show nodes in other states
			}
			list := newList()
			err := readInto(ctx, get(&o), o.Limit, list, unusedInList, &text)
			if page, is := list.(metav1.ListInterface); err != nil || !is || page.GetContinue() == "" {
				text = bytes.Buffer{} // the last page
			}
			return list, err
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			if h != nil {
				h.next = [2]uint64{} // it is unknown whether the last event of the previous watch was processed
			}
			return openWatch(ctx, get(&o), unused, h)
		},
	}
}
