package simulate

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Source is the origin of the state that an answer is about. Every answer has one, so
// that it can be judged later: from where, from when, and by which configuration.
type Source struct {
	// From is where it was read: an API server, or files.
	From string `json:"from"`
	// AsOf is the time to which the state belongs; zero if files do not tell.
	AsOf metav1.Time `json:"asOf"`
	// ResourceVersion is that of the newest list that was read; empty for files.
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// Assumed says by which configuration of the scheduler the answer is, if that is not the one of
	// a scheduler that runs, nor one that the user has named.
	Assumed string `json:"assumed,omitempty"`
}

// String is the last line of the text output. Times are in UTC.
func (s Source) String() string {
	text := "Read from " + s.From + " as of " + s.AsOf.UTC().Format("2006-01-02 15:04:05Z")
	if s.ResourceVersion != "" {
		text += ", resourceVersion " + s.ResourceVersion
	}
	return text
}
