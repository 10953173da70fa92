package simulate

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Source says which state an answer is about.
type Source struct {
	// From is where it was read: an API server, or files.
	From string      `json:"from"`
	AsOf metav1.Time `json:"asOf"`
	// ResourceVersion is the newest of the lists that were read; empty for files.
	ResourceVersion string `json:"resourceVersion,omitempty"`
}
