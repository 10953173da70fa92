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

// String is the last line of what people read.
func (s Source) String() string {
	text := "Read from " + s.From + " as of " + s.AsOf.UTC().Format("2006-01-02 15:04:05Z")
	if s.ResourceVersion != "" {
		text += ", resourceVersion " + s.ResourceVersion
	}
	return text
}
