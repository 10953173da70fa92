// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// DefaultTimeout bounds a request if the configuration sets no limit.
const DefaultTimeout = 5 * time.Second

// longestAnswer bounds an extender's response, in bytes. An extender that gets whole nodes returns
// whole nodes: 5,000 nodes of 10 KiB are 50 MiB. A longer response is an error, and is not read to
// its end.
const longestAnswer = 64 << 20

// Extender is an HTTP extender. It is safe for concurrent use. Its methods block until the extender
// responds, or the configured timeout is over; they do not retry.
type Extender struct {
	config configv1.Extender
	client *http.Client
}

var _ fwk.Extender = &Extender{}

// New returns the configured extender. It sends no request.
func New(config configv1.Extender) (*Extender, error) {
	transport, err := transportFor(&config)
	if err != nil {
		return nil, fmt.Errorf("extender %s: %w", config.URLPrefix, err)
	}
	timeout := cmp.Or(config.HTTPTimeout.Duration, DefaultTimeout)
	return &Extender{config, &http.Client{Transport: transport, Timeout: timeout}}, nil
}

// transportFor reads the TLS settings. Like upstream, enableHTTPS without a CA accepts any
// certificate.
func transportFor(config *configv1.Extender) (http.RoundTripper, error) {
	var c rest.Config
	if t := config.TLSConfig; t != nil {
		c.TLSClientConfig = rest.TLSClientConfig{
			Insecure: t.Insecure, ServerName: t.ServerName, CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile,
			CertData: t.CertData, KeyData: t.KeyData, CAData: t.CAData,
		}
	}

	if config.EnableHTTPS && c.CAFile == "" && len(c.CAData) == 0 {
		c.Insecure = true
	}
	tlsConfig, err := rest.TLSConfigFor(&c)
	if err != nil {
		return nil, err
	}

	transport := &http.Transport{}
	if tlsConfig != nil {
		transport.TLSClientConfig = tlsConfig
	}
	return utilnet.SetTransportDefaults(transport), nil
}

// Name returns the address.
func (e *Extender) Name() string { return e.config.URLPrefix }

// IsIgnorable reports whether pods are scheduled without the extender if it fails.
func (e *Extender) IsIgnorable() bool { return e.config.Ignorable }

// IsFilter and its siblings report the extender's configured functions.
func (e *Extender) IsFilter() bool           { return e.config.FilterVerb != "" }
func (e *Extender) IsPrioritizer() bool      { return e.config.PrioritizeVerb != "" }
func (e *Extender) IsBinder() bool           { return e.config.BindVerb != "" }
func (e *Extender) SupportsPreemption() bool { return e.config.PreemptVerb != "" }

// IsInterested reports whether the pod requests a resource managed by the extender. An extender
// without managed resources is interested in all pods.
func (e *Extender) IsInterested(pod *v1.Pod) bool {
	return len(e.config.ManagedResources) == 0 ||
		slices.ContainsFunc(pod.Spec.Containers, e.manages) || slices.ContainsFunc(pod.Spec.InitContainers, e.manages)
}

// manages reports whether the container requests, or limits, a resource managed by the extender.
func (e *Extender) manages(c v1.Container) bool {
	return slices.ContainsFunc(e.config.ManagedResources, func(r configv1.ExtenderManagedResource) bool {
		_, requests := c.Resources.Requests[v1.ResourceName(r.Name)]
		_, limits := c.Resources.Limits[v1.ResourceName(r.Name)]
		return requests || limits
	})
}

// Filter returns the nodes that pass the extender, and the reasons for rejected ones. A node in
// neither list is rejected as well; see package outoftree. An extender that does not filter lets
// all nodes pass.
func (e *Extender) Filter(pod *v1.Pod, nodes []fwk.NodeInfo) (passed []fwk.NodeInfo, failed,
	unresolvable extenderv1.FailedNodesMap, err error) {
	if !e.IsFilter() {
		return nodes, extenderv1.FailedNodesMap{}, extenderv1.FailedNodesMap{}, nil
	}
	var result extenderv1.ExtenderFilterResult
	if err := e.send(e.config.FilterVerb, e.args(pod, nodes), &result); err != nil {
		return nil, nil, nil, err
	}
	if result.Error != "" {
		return nil, nil, nil, errors.New(result.Error)
	}
	passed, err = e.known(nodes, &result)
	return passed, result.FailedNodes, result.FailedAndUnresolvableNodes, err
}

// args describes the pod and the nodes in the extender's form: whole nodes, or, if it is
// nodeCacheCapable, their names.
//
//	{"Pod": {...}, "NodeNames": ["n1", "n2"]}
func (e *Extender) args(pod *v1.Pod, nodes []fwk.NodeInfo) *extenderv1.ExtenderArgs {
	args := &extenderv1.ExtenderArgs{Pod: pod}
	if e.config.NodeCacheCapable {
		names := make([]string, 0, len(nodes))
		for _, n := range nodes {
			names = append(names, n.Node().Name)
		}
		args.NodeNames = &names
		return args
	}
	// Send whole nodes to an extender without its own view of the cluster.
	args.Nodes = &v1.NodeList{Items: make([]v1.Node, 0, len(nodes))}
	for _, n := range nodes {
		args.Nodes.Items = append(args.Nodes.Items, *n.Node())
	}
	return args
}

// known looks up the nodes named in a response. Like upstream, a node that was not in the request
// is an error: it indicates a bug of the extender.
func (e *Extender) known(nodes []fwk.NodeInfo, result *extenderv1.ExtenderFilterResult) ([]fwk.NodeInfo, error) {
	var names []string
	switch {
	// A nodeCacheCapable extender may respond with whole nodes as well.
	case e.config.NodeCacheCapable && result.NodeNames != nil:
		names = *result.NodeNames
	case result.Nodes != nil:
		names = rules.Mapped(result.Nodes.Items, func(n v1.Node) string { return n.Name })
	}

	byName := make(map[string]fwk.NodeInfo, len(nodes))
	for _, n := range nodes {
		byName[n.Node().Name] = n
	}

	passed := make([]fwk.NodeInfo, 0, len(names))
	for _, name := range names {
		n, ok := byName[name]
		if !ok {
			return nil, fmt.Errorf("extender %q claims a filtered node %q which is not found in the input node list", e.Name(), name)
		}
		passed = append(passed, n)
	}

	return passed, nil
}

// Prioritize returns the extender's scores, 0 to 10 each, and their weight. An extender that does
// not score gives 0 to all. The result includes scores of nodes missing from the request; see
// package outoftree for their treatment.
func (e *Extender) Prioritize(pod *v1.Pod, nodes []fwk.NodeInfo) (*extenderv1.HostPriorityList, int64, error) {
	var result extenderv1.HostPriorityList
	if !e.IsPrioritizer() {
		result = rules.Mapped(nodes, func(n fwk.NodeInfo) extenderv1.HostPriority { return extenderv1.HostPriority{Host: n.Node().Name} })
		return &result, 0, nil
	}
	if err := e.send(e.config.PrioritizeVerb, e.args(pod, nodes), &result); err != nil {
		return nil, 0, err
	}
	return &result, e.config.Weight, nil
}

// Bind makes the extender bind a pod. Without an error the pod is bound; Berth sends no binding
// itself.
func (e *Extender) Bind(binding *v1.Binding) error {
	if !e.IsBinder() {
		return errors.New("unexpected empty bindVerb in extender")
	}
	var result extenderv1.ExtenderBindingResult
	args := &extenderv1.ExtenderBindingArgs{PodName: binding.Name, PodNamespace: binding.Namespace,
		PodUID: binding.UID, Node: binding.Target.Name}
	if err := e.send(e.config.BindVerb, args, &result); err != nil {
		return err
	}
	if result.Error != "" {
		return errors.New(result.Error)
	}
	return nil
}

// ProcessPreemption sends the candidates for preemption to the extender, and returns the remaining
// ones. The response names pods by their UIDs, whatever was sent; the pods are taken from nodes.
func (e *Extender) ProcessPreemption(pod *v1.Pod, victims map[string]*extenderv1.Victims,
	nodes fwk.NodeInfoLister) (map[string]*extenderv1.Victims, error) {
	if !e.SupportsPreemption() {
		return nil, fmt.Errorf("preempt verb is not defined for extender %v but run into ProcessPreemption", e.Name())
	}
	args := &extenderv1.ExtenderPreemptionArgs{Pod: pod}
	if e.config.NodeCacheCapable {
		args.NodeNameToMetaVictims = metaVictims(victims)
	} else {
		args.NodeNameToVictims = victims
	}

	var result extenderv1.ExtenderPreemptionResult
	if err := e.send(e.config.PreemptVerb, args, &result); err != nil {
		return nil, err
	}

	// A node missing from the response is no longer a candidate.
	left := make(map[string]*extenderv1.Victims, len(result.NodeNameToMetaVictims))
	for name, meta := range result.NodeNameToMetaVictims {
		node, err := nodes.Get(name)
		if err != nil {
			return nil, err
		}
		if left[name], err = e.victimsOn(node, meta); err != nil {
			return nil, err
		}
	}

	return left, nil
}

// metaVictims returns the form for an extender with its own view of the cluster: UIDs instead of
// pods.
func metaVictims(victims map[string]*extenderv1.Victims) map[string]*extenderv1.MetaVictims {
	meta := make(map[string]*extenderv1.MetaVictims, len(victims))
	for node, v := range victims {
		m := &extenderv1.MetaVictims{Pods: []*extenderv1.MetaPod{}, NumPDBViolations: v.NumPDBViolations}
		for _, pod := range v.Pods {
			m.Pods = append(m.Pods, &extenderv1.MetaPod{UID: string(pod.UID)})
		}
		meta[node] = m
	}
	return meta
}

// victimsOn looks up the pods of a response among those of the node. Like upstream, a missing pod
// is an error.
func (e *Extender) victimsOn(node fwk.NodeInfo, meta *extenderv1.MetaVictims) (*extenderv1.Victims, error) {
	if meta == nil {
		return nil, nil
	}
	victims := &extenderv1.Victims{NumPDBViolations: meta.NumPDBViolations}
	for _, m := range meta.Pods {
		i := slices.IndexFunc(node.GetPods(), func(p fwk.PodInfo) bool { return string(p.GetPod().UID) == m.UID })
		if i < 0 {
			return nil, fmt.Errorf("extender: %v claims to preempt pod (UID: %v) on node: %v, but the pod is not found on that node",
				e.Name(), m.UID, node.Node().Name)
		}
		victims.Pods = append(victims.Pods, node.GetPods()[i].GetPod())
	}
	return victims, nil
}

// send sends one request, and decodes the response. Everything but 200 is an error. Like upstream,
// the address is the prefix and the verb, with one slash between them.
func (e *Extender) send(verb string, args, result any) error {
	body, err := json.Marshal(args)
	if err != nil {
		return err
	}

	url := strings.TrimRight(e.config.URLPrefix, "/") + "/" + verb
	response, err := e.client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}

	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("failed %v with extender at URL %v, code %v", verb, url, response.StatusCode)
	}

	answer := &io.LimitedReader{R: response.Body, N: longestAnswer + 1}
	err = json.NewDecoder(answer).Decode(result)
	if answer.N <= 0 {
		return fmt.Errorf("extender at URL %v: the answer is longer than %d bytes", url, longestAnswer)
	}
	return err
}
