package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/connect"
)

// subject is a kind of object whose names are completed.
type subject struct {
	words    []string // as kubectl writes it, the singular first
	resource schema.GroupVersionResource
	cluster  bool // not in a namespace
	in       func(*manifest.Set) []metav1.Object
}

var (
	namespaces = subject{[]string{"namespace"}, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, true,
		func(s *manifest.Set) []metav1.Object { return asObjects(s.Namespaces) }}
	nodeSubject = subject{nodeWords, schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, true,
		func(s *manifest.Set) []metav1.Object { return asObjects(s.Nodes) }}
	podSubject = subject{podWords, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, false,
		func(s *manifest.Set) []metav1.Object { return asObjects(s.Pods) }}
	scalable = []subject{
		{[]string{"deployment", "deployments", "deploy"}, appsResource("deployments"), false,
			func(s *manifest.Set) []metav1.Object { return asObjects(s.Deployments) }},
		{[]string{"statefulset", "statefulsets", "sts"}, appsResource("statefulsets"), false,
			func(s *manifest.Set) []metav1.Object { return asObjects(s.StatefulSets) }},
		{[]string{"replicaset", "replicasets", "rs"}, appsResource("replicasets"), false,
			func(s *manifest.Set) []metav1.Object { return asObjects(s.ReplicaSets) }},
		{[]string{"replicationcontroller", "replicationcontrollers", "rc"},
			v1.SchemeGroupVersion.WithResource("replicationcontrollers"), false,
			func(s *manifest.Set) []metav1.Object { return asObjects(s.ReplicationControllers) }},
	}
	groupSubject = subject{groupWords, schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1beta1",
		Resource: "podgroups"}, false,
		func(s *manifest.Set) []metav1.Object { return asObjects(s.PodGroups) }}
	// podsAndWorkloads are what is explained, deleted, or taken as a model.
	podsAndWorkloads = slices.Concat([]subject{podSubject}, scalable, []subject{
		{[]string{"daemonset", "daemonsets", "ds"}, appsResource("daemonsets"), false,
			func(s *manifest.Set) []metav1.Object { return asObjects(s.DaemonSets) }},
		{[]string{"job", "jobs"}, schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, false,
			func(s *manifest.Set) []metav1.Object { return asObjects(s.Jobs) }},
	})
)

func appsResource(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}
}

func asObjects[T metav1.Object](list []T) []metav1.Object {
	all := make([]metav1.Object, len(list))
	for i, o := range list {
		all[i] = o
	}
	return all
}

// A completion must answer while the user waits: of a live cluster it reads names only, and no more
// than these.
const (
	completesWithin = 3 * time.Second
	mostCompleted   = 500
)

// namesOf lists the names of a kind in the cluster, or in the files, that is asked about. What
// cannot be read has no names.
func (q *question) namesOf(cmd *cobra.Command, of subject, namespace string) (names []string) {
	if of.cluster {
		namespace = ""
	}
	if len(q.files) > 0 {
		if slices.Contains(q.files, "-") {
			return nil // it is the terminal
		}
		slices.Sort(q.files)
		q.files = slices.Compact(q.files) // cobra reads the flags twice
		set, err := manifest.Read(q.files, nil, manifest.Options{Recursive: q.recursive, Lenient: true})
		if err != nil {
			return nil
		}
		set.Expand(int64(q.seed))
		for _, o := range of.in(set) {
			if of.cluster || o.GetNamespace() == namespace {
				names = append(names, o.GetName())
			}
		}
		slices.Sort(names)
		return names
	}
	cfg, err := q.connection.restConfig(q.userAgent)
	if err != nil {
		return nil
	}
	client, err := metadata.NewForConfig(snapshot.ReadOnly(cfg))
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completesWithin)
	defer cancel()
	list, err := client.Resource(of.resource).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: mostCompleted})
	if err != nil {
		return nil
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// completeRef completes TYPE/NAME, or behind a type that stands alone a name.
func (q *question) completeRef(cmd *cobra.Command, of []subject, before, toComplete, namespace string) ([]string,
	cobra.ShellCompDirective) {
	kind, _, slashed := strings.Cut(toComplete, "/")
	for _, s := range of {
		switch {
		case slashed && slices.Contains(s.words, kind):
			names := q.namesOf(cmd, s, namespace)
			for i := range names {
				names[i] = kind + "/" + names[i]
			}
			return withPrefix(names, toComplete), cobra.ShellCompDirectiveNoFileComp
		case !slashed && slices.Contains(s.words, before):
			return withPrefix(q.namesOf(cmd, s, namespace), toComplete), cobra.ShellCompDirectiveNoFileComp
		}
	}

	if slashed {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var kinds []string
	for _, s := range of {
		kinds = append(kinds, s.words[0]+"/")
	}
	return withPrefix(kinds, toComplete), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

func withPrefix(words []string, prefix string) []string {
	return slices.DeleteFunc(slices.Clone(words), func(word string) bool { return !strings.HasPrefix(word, prefix) })
}

// flagValues completes the value of a flag that means the same for all questions; false if there is
// none such.
func (q *question) flagValues(cmd *cobra.Command, flag, toComplete, namespace string) ([]string, bool) {
	var words []string
	switch flag {
	case "namespace":
		words = q.namesOf(cmd, namespaces, "")
	case "context":
		words = q.connection.to.Contexts()
	case "node":
		words = q.namesOf(cmd, nodeSubject, "")
	case "output":
		words = formatChoices(formats)
	case "like":
		words, _ = q.completeRef(cmd, append(slices.Clone(podsAndWorkloads), nodeSubject), "", toComplete, namespace)
	default:
		return nil, false
	}
	return withPrefix(words, toComplete), true
}

// completeFlags has cobra complete the values of flags.
func (q *question) completeFlags(cmd *cobra.Command, namespace *string) {
	for _, name := range []string{"namespace", "context", "node", "output", "like"} {
		if cmd.Flags().Lookup(name) == nil {
			continue
		}
		mustSucceed(cmd.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, _ []string, toComplete string) ([]string,
			cobra.ShellCompDirective) {
			space := ""
			if namespace != nil {
				space = q.namespaceOr(*namespace)
			}

			words, _ := q.flagValues(cmd, name, toComplete, space)
			directive := cobra.ShellCompDirectiveNoFileComp
			if name == "like" && !strings.Contains(toComplete, "/") {
				directive |= cobra.ShellCompDirectiveNoSpace
			}
			return words, directive
		}))
	}
}

// completeContexts completes --context of a command and of those below it.
func completeContexts(cmd *cobra.Command) {
	if _, done := cmd.GetFlagCompletionFunc("context"); !done && cmd.LocalFlags().Lookup("context") != nil {
		mustSucceed(cmd.RegisterFlagCompletionFunc("context",
			func(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
				to := connect.Flags{Kubeconfig: cmd.Flag("kubeconfig").Value.String()}
				return withPrefix(to.Contexts(), toComplete), cobra.ShellCompDirectiveNoFileComp
			}))
	}
	for _, sub := range cmd.Commands() {
		completeContexts(sub)
	}
}

// completeChoices completes a flag that takes one of a few words.
func completeChoices(cmd *cobra.Command, flag string, words ...string) {
	mustSucceed(cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, toComplete string) ([]string,
		cobra.ShellCompDirective) {
		return withPrefix(words, toComplete), cobra.ShellCompDirectiveNoFileComp
	}))
}

// mustSucceed is for errors that only a mistake in the command's own definition can cause.
func mustSucceed(err error) {
	if err != nil {
		panic(err)
	}
}
