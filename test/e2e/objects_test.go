package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/jsonpath"
)

// objects reads objects of any kind, named as kubectl get takes them. What waits asks many times a
// second: a process of kubectl for each answer would take more of the processor than what is
// tested.
type objects struct {
	kinds  meta.RESTMapper
	client dynamic.Interface
}

// objectsOf reads those of the cluster whose data directory this is.
func objectsOf(dataDir string, client kubernetes.Interface) (*objects, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dataDir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	o := &objects{}
	if o.client, err = dynamic.NewForConfig(cfg); err != nil {
		return nil, err
	}
	known := memory.NewMemCacheClient(client.Discovery())
	o.kinds = restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(known), known, nil)
	return o, nil
}

// get returns an object, pod/name for one, which if it has a namespace is in default. Nil: there is
// none of that name.
func (o *objects) get(object string) (*unstructured.Unstructured, error) {
	resource, name, _ := strings.Cut(object, "/")
	kind, err := o.kinds.KindFor(schema.GroupVersionResource{Resource: resource})
	if err != nil {
		return nil, err
	}
	mapping, err := o.kinds.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	var from dynamic.ResourceInterface = o.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		from = o.client.Resource(mapping.Resource).Namespace(metav1.NamespaceDefault)
	}
	found, err := from.Get(background(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return found, err
}

// get is a field of an object of the shared cluster as kubectl get -o jsonpath prints it. It is
// empty where there is no such object or field, or it cannot be read now.
func get(t *testing.T, object, path string) string {
	t.Helper()
	template := jsonpath.New(object).AllowMissingKeys(true)
	if err := template.Parse(path); err != nil {
		t.Fatal(err)
	}
	found, err := shared.objects.get(object)
	if err != nil {
		t.Logf("%s: %v", object, err)
	}
	if err != nil || found == nil {
		return ""
	}
	var text strings.Builder
	if err := template.Execute(&text, found.Object); err != nil {
		t.Logf("%s: %v", object, err)
		return ""
	}
	return text.String()
}
