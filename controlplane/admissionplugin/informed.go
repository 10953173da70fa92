package admissionplugin

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apiserver "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/admission/live"
)

// informed is a plugin that looks objects up. The API server hands it its own client and informers.
// It is embedded by the plugins that read namespaces, priority classes or runtime classes.
type informed struct {
	*apiserver.Handler
	client kubernetes.Interface
	caches *live.Caches
}

var (
	_ initializer.WantsExternalKubeClientSet       = &informed{}
	_ initializer.WantsExternalKubeInformerFactory = &informed{}
	_ apiserver.InitializationValidator            = &informed{}
)

// SetExternalKubeClientSet implements the initializer; it comes first.
func (p *informed) SetExternalKubeClientSet(client kubernetes.Interface) { p.client = client }

// SetExternalKubeInformerFactory implements the initializer.
func (p *informed) SetExternalKubeInformerFactory(factory informers.SharedInformerFactory) {
	p.caches = live.NewCaches(p.client, factory)
	// WaitForReady asks it; see await.
	p.SetReadyFunc(p.caches.HasSynced)
}

// ValidateInitialization implements apiserver.InitializationValidator.
func (p *informed) ValidateInitialization() error {
	// The order of the initializers is upstream's; a change of it must not pass unnoticed.
	if p.client == nil || p.caches == nil {
		return fmt.Errorf("the API server gave no client or no informers")
	}
	return nil
}

// await holds the request until the caches are filled, for ten seconds at the
// most, and refuses it then: wrong defaults would stay with the pod for ever.
func (p *informed) await(a apiserver.Attributes) error {
	if !p.WaitForReady() {
		return apiserver.NewForbidden(a, fmt.Errorf("not yet ready to handle request"))
	}
	return nil
}

// isAbout reports whether the request is about an object of that kind itself
// and not a subresource of it.
func isAbout(a apiserver.Attributes, resource schema.GroupResource) bool {
	return a.GetSubresource() == "" && a.GetResource().GroupResource() == resource
}
