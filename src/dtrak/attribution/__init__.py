"""`attribute` scores training images for queries. Scores give the strongest images and the credit of groups."""
