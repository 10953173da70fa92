// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"fmt"
	"net/http"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

// Kind is a kind of object that decisions depend on.
type Kind struct {
	Resource     string
	GroupVersion schema.GroupVersion
	Kind         string
	// Needed is set if every result requires the kind.
	Needed bool
}

// Kinds returns all kinds that decisions depend on.
func Kinds() (list []Kind) {
	for _, kind := range manifest.Kinds() {
		resource, _ := meta.UnsafeGuessKindToResource(kind)
		list = append(list, Kind{
			Resource: resource.Resource, GroupVersion: kind.GroupVersion(), Kind: kind.Kind,
			Needed: kind.Kind == "Node" || kind.Kind == "Pod",
		})
	}
	return list
}

// Client reads kinds from a cluster. All API groups share one connection.
type Client struct {
	// DropManagedFields makes Read drop managed fields, which take up to half of a pod's size.
	DropManagedFields bool
	// NodePools makes Read read Karpenter's NodePools as well.
	NodePools bool

	config *rest.Config
	http   clientOf
}

type clientOf map[schema.GroupVersion]rest.Interface

// NewClient returns a client that only reads.
func NewClient(config *rest.Config) (*Client, error) {
	config = ReadOnly(config)
	if config.QPS == 0 {
		config.QPS, config.Burst = 50, 100
	}

	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}

	c := &Client{config: config, http: clientOf{}}
	for _, k := range Kinds() {
		if c.http[k.GroupVersion] != nil {
			continue
		}
		own := rest.CopyConfig(config)
		own.GroupVersion = &k.GroupVersion
		own.APIPath = "/apis"
		if k.GroupVersion.Group == "" {
			own.APIPath = "/api"
		}
		own.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
		if c.http[k.GroupVersion], err = rest.RESTClientForConfigAndClient(own, httpClient); err != nil {
			return nil, err
		}
	}

	return c, nil
}

// List lists one page of a kind.
func (c *Client) List(ctx context.Context, k Kind, options metav1.ListOptions) (runtime.Object, error) {
	list, err := scheme.Scheme.New(k.GroupVersion.WithKind(k.Kind + "List"))
	if err != nil {
		return nil, err
	}
	request := c.http[k.GroupVersion].Get().Resource(k.Resource).VersionedParams(&options, scheme.ParameterCodec)
	return list, connect.WithRemedy(feed.ReadInto(ctx, request, options.Limit, list))
}

// Host is the API server's address.
func (c *Client) Host() string { return c.config.Host }

// ClusterID identifies the cluster: the UID of a namespace that every cluster has.
func (c *Client) ClusterID(ctx context.Context) (string, error) {
	var ns v1.Namespace
	err := c.http[v1.SchemeGroupVersion].Get().Resource("namespaces").Name(metav1.NamespaceSystem).Do(ctx).Into(&ns)
	return string(ns.UID), connect.WithRemedy(err)
}

// StatusOf describes a pod from its own status, for callers without access to the whole cluster. It
// is empty if the pod cannot be read, or was never tried.
func (c *Client) StatusOf(ctx context.Context, namespace, name string) string {
	var pod v1.Pod
	if err := c.http[v1.SchemeGroupVersion].Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(&pod); err != nil {
		return ""
	}
	if pod.Spec.NodeName != "" {
		return fmt.Sprintf("pod %s/%s is on node %s", namespace, name, pod.Spec.NodeName)
	}
	return messageFor(&pod)
}

// StatusesOf describes the pending pods of a namespace like StatusOf, one per line.
func (c *Client) StatusesOf(ctx context.Context, namespace string) (lines []string) {
	var list v1.PodList
	if err := c.http[v1.SchemeGroupVersion].Get().Namespace(namespace).Resource("pods").Do(ctx).Into(&list); err != nil {
		return nil
	}
	for i := range list.Items {
		if message := messageFor(&list.Items[i]); list.Items[i].Spec.NodeName == "" && message != "" {
			lines = append(lines, message)
		}
	}
	return lines
}

// messageFor quotes the scheduler's message in a pod's status; empty without one.
func messageFor(pod *v1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled && condition.Message != "" {
			return fmt.Sprintf("the scheduler wrote into the status of pod %s/%s, %s: %s", pod.Namespace, pod.Name,
				condition.LastTransitionTime.UTC().Format("2006-01-02 15:04:05Z"), condition.Message)
		}
	}
	return ""
}

// Source lists and watches a kind.
func (c *Client) Source(k Kind) feed.Source {
	return feed.Source{
		Name: k.Resource,
		List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return c.List(ctx, k, options)
		},
		Watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			w, err := c.http[k.GroupVersion].Get().Resource(k.Resource).VersionedParams(&options, scheme.ParameterCodec).Watch(ctx)
			return w, connect.WithRemedy(err)
		},
	}
}

// Optional reports whether this error of a list means that the kind can be left out, because it is
// forbidden or not served.
func Optional(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }

// ReadOnly returns the configuration of a connection that cannot write: a request other than GET
// fails without being sent.
func ReadOnly(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return readOnly{next} })
	return config
}

type readOnly struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (r readOnly) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		return nil, fmt.Errorf("%s %s is not sent: this command only reads", request.Method, request.URL.Path)
	}
	return r.next.RoundTrip(request)
}

// WrappedRoundTripper returns the transport below, for client-go.
func (r readOnly) WrappedRoundTripper() http.RoundTripper { return r.next }
