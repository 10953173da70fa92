// Package records keeps records in the files of a folder: what they say is for those who write
// and read them. A file begins with a line that says what it is and a header in JSON. Each record
// carries its length and a checksum, so that a file that ends in the middle of one, as a kill
// leaves it, is read up to there. Files are bounded by size and age; the oldest go as a whole.
package records
