// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"reflect"

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
	get := func(o *metav1.ListOptions) *rest.Request {
		return client.Get().Namespace(namespace).Resource(resource).VersionedParams(o, metav1.ParameterCodec).MaxRetries(0)
	}
	return Source{
		Name: resource,
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := newList()
			return list, ReadInto(ctx, get(&o), o.Limit, list)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return checkOpened(get(&o).Watch(ctx))
		},
	}
}

// checkOpened returns an error for a watch that was never opened. If the connection ended or timed
// out, client-go returns an empty watch instead of an error.
func checkOpened(w watch.Interface, err error) (watch.Interface, error) {
	if err == nil && reflect.TypeOf(w) == unopened {
		return nil, errUnopened
	}
	return w, err
}

var unopened = reflect.TypeOf(watch.NewEmptyWatch())
