// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

// Snapshot is the state of a cluster.
type Snapshot struct {
	*manifest.Set
	simulate.Source
	// Missing lists the kinds that could not be read, and why, one per line.
	Missing []string
}

// pageSize is the number of objects per request: a few megabytes of pods.
const pageSize = 1000

// atATime bounds the concurrent lists, so that a command does not burden the API server.
const atATime = 4

// Read reads everything that decisions depend on. progress, if not nil, is called with the number
// of objects read so far.
func (c *Client) Read(ctx context.Context, progress func(objects int)) (*Snapshot, error) {
	return c.ReadKinds(ctx, Kinds(), progress)
}

// ReadKinds is Read for some kinds.
func (c *Client) ReadKinds(ctx context.Context, kinds []Kind, progress func(objects int)) (*Snapshot, error) {
	lists := make([][]metav1.Object, len(kinds))
	s := &Snapshot{Source: simulate.Source{From: c.config.Host, AsOf: metav1.NewTime(time.Now().UTC().Truncate(time.Second))}}
	var mu sync.Mutex
	read := 0
	var ofGroups []string // unreadable kinds of pod groups, reported only if a pod belongs to a group
	count := func(objects int) {
		mu.Lock()
		defer mu.Unlock()
		if read += objects; progress != nil {
			progress(read)
		}
	}
	group, listing := errgroup.WithContext(ctx)
	group.SetLimit(atATime)
	for i, k := range kinds {
		group.Go(func() error {
			version, err := c.ListAll(listing, k, func(object metav1.Object) {
				if c.unused(k) != nil {
					object.SetManagedFields(nil) // of objects in JSON
				}
				if lists[i] = append(lists[i], object); len(lists[i])%pageSize == 0 {
					count(pageSize)
				}
			})
			count(len(lists[i]) % pageSize)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if k.Needed || !Optional(err) {
					return fmt.Errorf("list %s: %w%s", k.Resource, err, remedyOf(err))
				}
				switch line := fmt.Sprintf("%s: %v", k.Resource, err); {
				case apierrors.IsNotFound(err): // an unserved kind has no objects
				case k.GroupVersion == schedulingv1beta1.SchemeGroupVersion:
					ofGroups = append(ofGroups, line)
				default:
					s.Missing = append(s.Missing, line)
				}
				return nil
			}
			// Keep the latest resource version; they are compared as numbers.
			known, _ := strconv.ParseUint(s.ResourceVersion, 10, 64)
			if listed, _ := strconv.ParseUint(version, 10, 64); listed > known {
				s.ResourceVersion = version
			}
			return nil
		})
	}

	if err := group.Wait(); err != nil {
		return nil, err
	}
	s.Set = manifest.Assemble(c.config.Host, slices.Concat(lists...))
	if slices.ContainsFunc(s.Pods, func(p *v1.Pod) bool { return p.Spec.SchedulingGroup != nil }) {
		s.Missing = append(s.Missing, ofGroups...)
	}
	slices.Sort(s.Missing)
	s.Whole = len(s.Missing) == 0
	if c.ForPlans && len(kinds) == len(Kinds()) {
		for _, kind := range slices.Sorted(maps.Keys(manifest.PlanKinds)) {
			if err := c.readForPlans(ctx, s, kind); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// readForPlans adds the objects of a kind that only plans use to a snapshot, if the cluster has
// this kind.
func (c *Client) readForPlans(ctx context.Context, s *Snapshot, kind string) error {
	path := manifest.PlanKinds[kind]
	resource := path[strings.LastIndex(path, "/")+1:]
	text, err := c.http[v1.SchemeGroupVersion].Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil && Optional(err):
		s.Missing = append(s.Missing, fmt.Sprintf("%s: %v", resource, err))
		return nil
	case err != nil:
		return fmt.Errorf("list %s: %w", resource, connect.WithRemedy(err))
	}

	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("list %s: %w", resource, err)
	}
	for _, item := range list.Items {
		s.ForPlans = append(s.ForPlans, manifest.Document{Kind: kind, File: resource + " of " + c.config.Host, Text: item})
	}
	return nil
}

// remedyOf names the role that grants the missing permission, if the error is a refusal. Binding
// the role in a single namespace does not cover nodes, which every result requires.
func remedyOf(err error) string {
	if !apierrors.IsForbidden(err) {
		return ""
	}
	return ". Answers depend on the nodes and on the pods of all namespaces; an administrator grants the permissions with " +
		"`kubectl create clusterrolebinding NAME --clusterrole=berth-view --user=USER`"
}

// ListAll lists a kind page by page and returns the list's resource version.
func (c *Client) ListAll(ctx context.Context, k Kind, take func(metav1.Object)) (version string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ask := feed.Ahead(func(o metav1.ListOptions) *rest.Request { return c.request(k, o) }, c.unused(k), k.newList)
	see := func(o runtime.Object) { take(o.(metav1.Object)) }
	version, begun, err := feed.Pages(ctx, metav1.ListOptions{Limit: pageSize, FieldSelector: k.Fields}, ask, see)
	err = connect.WithRemedy(err)
	if apierrors.IsResourceExpired(err) && begun {
		return "", fmt.Errorf("the list of %s took longer than the API server keeps it: try again", k.Resource)
	}
	return version, err
}

// Kind is a kind of object that decisions depend on.
type Kind struct {
	Resource     string
	GroupVersion schema.GroupVersion
	Kind         string
	// Needed is set if every result requires the kind.
	Needed bool
	// Fields is the field selector of the lists.
	Fields string
}

func (k Kind) newList() runtime.Object {
	list, err := scheme.Scheme.New(k.GroupVersion.WithKind(k.Kind + "List"))
	if err != nil {
		panic(err) // all kinds are part of the scheme
	}
	return list
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
	// DropManagedFields drops the managed fields of nodes as well.
	DropManagedFields bool
	// ForPlans makes Read read the kinds that only plans of nodes use as well.
	ForPlans bool

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
	list := k.newList()
	return list, connect.WithRemedy(feed.ReadInto(ctx, c.request(k, options), options.Limit, list, c.unused(k)))
}

func (c *Client) request(k Kind, options metav1.ListOptions) *rest.Request {
	return c.http[k.GroupVersion].Get().Resource(k.Resource).VersionedParams(&options, scheme.ParameterCodec)
}

// unused returns the fields of objects that are not decoded. Managed fields take up to half of a
// pod's size. Those of nodes state when taints were written.
func (c *Client) unused(k Kind) feed.Fields {
	if k.Kind == "Node" && !c.DropManagedFields {
		return nil
	}
	return feed.ManagedFields
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
	c := rules.PodCondition(&pod.Status, v1.PodScheduled)
	if c == nil || c.Message == "" {
		return ""
	}
	return fmt.Sprintf("the scheduler wrote into the status of pod %s/%s, %s: %s", pod.Namespace, pod.Name,
		c.LastTransitionTime.UTC().Format("2006-01-02 15:04:05Z"), c.Message)
}

// Source lists and watches a kind.
func (c *Client) Source(k Kind) feed.Source {
	source := feed.Without(c.unused(k), c.http[k.GroupVersion], metav1.NamespaceAll, k.Resource, k.newList)
	list, open := source.List, source.Watch
	source.List = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		page, err := list(ctx, options)
		return page, connect.WithRemedy(err)
	}
	source.Watch = func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		w, err := open(ctx, options)
		return w, connect.WithRemedy(err)
	}
	return source
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
