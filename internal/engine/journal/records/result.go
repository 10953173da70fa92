package records

import "time"

// Result is the outcome of a replay.
type Result struct {
	Events  int           `json:"events"`
	Actions int           `json:"actions"`
	Lasted  time.Duration `json:"lasted"` // of the journal's own time
	Cut     bool          `json:"cut,omitempty"`
	// Parting is the first difference; nil if there is none.
	Parting *Parting `json:"parting,omitempty"`
}

// Parting is the first event from which other actions follow than were recorded.
type Parting struct {
	Event    int       `json:"event"` // its number, from 0
	At       time.Time `json:"at"`
	Recorded string    `json:"recorded"`
	Replayed string    `json:"replayed"`
}
